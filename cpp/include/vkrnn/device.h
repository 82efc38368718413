// The Vulkan side as the rest of the project sees it: devices that run plans. No Vulkan types here, so that only
// the files under src/vk/ are compiled against the Vulkan headers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vkrnn/plan.h"
#include "vkrnn/profile.h"
#include "vkrnn/spec.h"

namespace vkrnn {

// Asked now and then while a call waits; true means stop (the caller saw an interrupt).
using Poll = std::function<bool()>;

// Counters since the device was opened.
struct Statistics {
    std::uint64_t calls = 0;
    std::uint64_t submissions = 0;
    std::uint64_t dispatches = 0;
    std::uint64_t bytes_uploaded = 0;
    std::uint64_t bytes_downloaded = 0;
    std::uint64_t bytes_allocated = 0;  // device memory held now
    std::uint64_t pipelines = 0;        // compiled pipelines held now
    std::uint64_t plans = 0;            // plans held now
    double last_device_seconds = 0.0;   // of the last call, by device timestamps, uploads and downloads excluded
    double last_host_seconds = 0.0;     // of the last call, from entry to return
};

// The physical devices, best first: discrete, integrated, virtual, CPU; the loader's order among equals.
// Throws DeviceError where there is no Vulkan loader or driver, with what to install.
std::vector<Profile> list_devices();

class Device {
public:
    // Opens the device at `index` of list_devices(). Throws DeviceError.
    static std::shared_ptr<Device> open(std::size_t index, const std::optional<Flavour>& flavour = std::nullopt);
    virtual ~Device() = default;

    [[nodiscard]] virtual const Profile& profile() const = 0;
    [[nodiscard]] virtual const Flavour& flavour() const = 0;

    // The plan for a spec on this device; cached. Thread-safe.
    virtual std::shared_ptr<const Plan> plan(const Spec& spec) = 0;

    // Runs a plan and returns when the results are in place. `inputs` go with plan.inputs and `results` with
    // plan.results: C-contiguous host memory of the buffers' sizes, none null, no aliasing between results and
    // anything. Calls from several threads run one after the other. `label` goes into error messages and debug labels.
    // Throws MemoryError, DeviceError, Interrupted (once the device is done with what was submitted).
    virtual void run(const Plan& plan, std::span<const void* const> inputs, std::span<void* const> results,
                     std::string_view label, const Poll& poll) = 0;

    [[nodiscard]] virtual Statistics statistics() const = 0;

    // Gives everything back to the driver, after writing the pipeline cache. Later calls raise DeviceError. Idempotent.
    virtual void close() = 0;
    [[nodiscard]] virtual bool closed() const = 0;
    // True once the driver reported the device lost. Calls on a lost device raise DeviceError.
    [[nodiscard]] virtual bool lost() const = 0;

    // Makes the next run behave as if the driver had lost the device during it. For tests.
    virtual void lose_for_test() = 0;
};

// Messages of the Vulkan validation layers so far, newest last. They are collected where the environment variable
// VKRNN_VALIDATION is 1 (which loads the layers, synchronization validation included); DeviceError where it is 1
// and the layers are not installed.
std::vector<std::string> validation_messages();

// The folder of the pipeline caches: $VKRNN_CACHE_DIR, else $XDG_CACHE_HOME/vkrnn, else ~/.cache/vkrnn.
std::string cache_directory();

// SPIR-V of a kernel of this package, by name; empty if there is none. Generated at build time.
std::span<const std::uint32_t> shader_code(std::string_view name);

}  // namespace vkrnn
