// Compiles kernels into pipelines and keeps the most recently used.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>

#include "vk/device/timeline.h"
#include "vk/device/vulkan.h"
#include "vk/pipelines/compile.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

// A compiled kernel. Code that records commands with it either holds it until the commands are dropped, or sets
// `last_use` to the point where they end. The destructor waits until the device has reached that point.
struct CompiledKernel {
    CompiledKernel(const Timeline& of, raii::Pipeline compiled) : timeline(of), pipeline(std::move(compiled)) {}
    ~CompiledKernel() { timeline.settle(last_use); }
    CompiledKernel(const CompiledKernel&) = delete;
    CompiledKernel& operator=(const CompiledKernel&) = delete;

    const Timeline& timeline;
    const raii::Pipeline pipeline;
    Point last_use = 0;
    std::uint64_t turn = 0;  // counts uses: the largest is the most recent
};
using SharedKernel = std::shared_ptr<CompiledKernel>;

class Pipelines {
public:
    // A call needs three to a dozen pipelines. Each takes some megabytes in llvmpipe, and less in drivers of GPUs.
    static constexpr std::size_t kCapacity = 128;

    // Reads the device's pipeline cache from disk, if there is one. Commands that use the pipelines are submitted to
    // the timeline, which must outlive them. Throws vk::SystemError.
    explicit Pipelines(const Timeline& timeline, std::size_t capacity = kCapacity);

    // Returns the kernel's pipeline, which is compiled at first use. If there are too many, drops the least recently
    // used one that has no other owner. Throws vk::SystemError, and std::invalid_argument if the package has no such
    // shader.
    SharedKernel get(const Kernel& kernel);

    // Notes that the pipeline is used by commands up to the point.
    void used(CompiledKernel& kernel, Point point) {
        kernel.last_use = point;
        kernel.turn = ++turn_;
    }

    // The layout of all pipelines.
    [[nodiscard]] PipelineLayout layout() const { return *layout_.pipeline; }

    // Writes the pipeline cache if anything was compiled since the last write. With `at_leisure`, does nothing within a
    // second of the last write.
    void save(bool at_leisure) noexcept;

    [[nodiscard]] std::size_t size() const { return size_; }  // thread-safe

private:
    void make_room();

    const Timeline& timeline_;
    const LogicalDevice& device_;
    const std::size_t capacity_;
    std::filesystem::path file_;
    KernelLayout layout_;
    raii::PipelineCache cache_ = nullptr;
    std::map<Kernel, SharedKernel> pipelines_;
    std::uint64_t turn_ = 0;
    std::atomic<std::size_t> size_ = 0;
    bool unsaved_ = false;
    double saved_at_ = -1e9;  // seconds of the steady clock
};

}  // namespace vkrnn::vk
