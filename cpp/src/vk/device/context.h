// The Vulkan instance: made at first use and shared, so that importing the package needs no driver.
#pragma once

#include <memory>
#include <vector>

#include "vk/device/vulkan.h"
#include "vkrnn/profile.h"

namespace vkrnn::vk {

class Context {
public:
    // The process's instance. It lives until the process ends: drivers do not take kindly to being unloaded while
    // static objects are destroyed. A process forked from one that had an instance gets its own.
    // Throws DeviceError: no loader, no driver, or VKRNN_VALIDATION=1 without the layers. Thread-safe.
    static std::shared_ptr<const Context> get();

    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    struct Candidate {
        raii::PhysicalDevice physical;
        Profile profile;
    };

    // The devices that can be used, best first. Throws DeviceError where there is none.
    [[nodiscard]] std::vector<Candidate> candidates() const;

    // Whether VK_EXT_debug_utils is enabled: labels cost something even when nobody reads them, but little.
    [[nodiscard]] bool debug_labels() const { return debug_labels_; }

private:
    Context();

    long process_;
    raii::Context loader_;
    bool debug_labels_ = false;
    raii::Instance instance_ = nullptr;
    raii::DebugUtilsMessengerEXT messenger_ = nullptr;
};

// One of an instance's devices.
struct Seat {
    std::shared_ptr<const Context> context;
    Context::Candidate candidate;
};

// The id of this process: devices do not survive a fork.
long process_id();

}  // namespace vkrnn::vk
