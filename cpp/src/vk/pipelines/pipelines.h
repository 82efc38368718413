// Compiles kernels into pipelines and keeps them.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <map>

#include "vk/device/logical_device.h"
#include "vk/device/vulkan.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

constexpr std::uint32_t kPushBytes = 128;  // Vulkan guarantees this many bytes of push constants

class Pipelines {
public:
    // Reads the device's pipeline cache from disk, if there is one. Throws vk::SystemError.
    explicit Pipelines(const LogicalDevice& device);

    // Returns the kernel's pipeline, compiled on first use; valid as long as this object lives. Throws vk::SystemError,
    // and std::invalid_argument if the package has no such shader.
    Pipeline get(const Kernel& kernel);

    // All pipelines share this layout of push constants and nothing else.
    [[nodiscard]] PipelineLayout layout() const { return *layout_; }

    // Writes the pipeline cache if anything was compiled since it was last written. `at_leisure` puts off a write that
    // follows the last one by less than a second.
    void save(bool at_leisure) noexcept;

    [[nodiscard]] std::size_t size() const { return size_; }  // thread-safe

private:
    raii::Pipeline compile(const Kernel& kernel);

    const LogicalDevice& device_;
    std::filesystem::path file_;
    raii::PipelineLayout layout_ = nullptr;
    raii::PipelineCache cache_ = nullptr;
    std::map<Kernel, raii::Pipeline> pipelines_;
    std::atomic<std::size_t> size_ = 0;
    bool unsaved_ = false;
    double saved_at_ = -1e9;  // seconds of the steady clock
};

}  // namespace vkrnn::vk
