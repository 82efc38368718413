// Creates the Vulkan instance at first use and shares it. Importing the package therefore needs no driver.
#pragma once

#include <memory>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "base/system.h"
#include "vk/device/vulkan.h"
#include "vkrnn/profile.h"

namespace vkrnn::vk {

class Context {
public:
    // Returns the process's instance. It is never destroyed, because some drivers crash if they are unloaded while
    // static objects are destroyed. A forked process gets its own instance. Throws DeviceError if there is no loader or
    // no driver, or if VKRNN_VALIDATION=1 and the layers are not installed. Thread-safe.
    static std::shared_ptr<const Context> get();

    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    struct Candidate {
        raii::PhysicalDevice physical;
        Profile profile;
    };

    // Lists the usable devices, best first. Throws DeviceError if there is none.
    [[nodiscard]] std::vector<Candidate> candidates() const;

    // Lists the devices that are not usable. Throws DeviceError.
    [[nodiscard]] std::vector<SkippedDevice> skipped() const;

    // Returns whether VK_EXT_debug_utils is enabled, so that commands can be labelled.
    [[nodiscard]] bool debug_labels() const { return debug_labels_; }

private:
    Context();
    void create_instance();
    [[nodiscard]] std::vector<raii::PhysicalDevice> physical_devices() const;

    long process_;
    raii::Context loader_;
    bool debug_labels_ = false;
    raii::Instance instance_ = nullptr;
    raii::DebugUtilsMessengerEXT messenger_ = nullptr;
};

// A physical device selected for opening, with the instance that it belongs to.
struct SelectedDevice {
    std::shared_ptr<const Context> context;
    Context::Candidate candidate;
};

// Locked while the loader lists, opens or closes devices. The loader has its own lock, which a process forked meanwhile
// would find locked for ever.
ForkSafeMutex& loader_mutex();

}  // namespace vkrnn::vk
