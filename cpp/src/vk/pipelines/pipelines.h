// Compiles kernels into pipelines and keeps those that were used last.
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

// A compiled kernel. Whoever has recorded commands with it holds it until they are dropped, or notes where they end:
// it waits for the device before it destroys the pipeline.
struct CompiledKernel {
    CompiledKernel(const Timeline& of, raii::Pipeline compiled) : timeline(of), pipeline(std::move(compiled)) {}
    ~CompiledKernel() { timeline.settle(last_use); }
    CompiledKernel(const CompiledKernel&) = delete;
    CompiledKernel& operator=(const CompiledKernel&) = delete;

    const Timeline& timeline;
    const raii::Pipeline pipeline;
    Point last_use = 0;
    std::uint64_t turn = 0;  // the larger, the later it was used
};
using SharedKernel = std::shared_ptr<CompiledKernel>;

class Pipelines {
public:
    // A call needs three to a dozen; one takes some megabytes in lavapipe, less in GPUs' drivers.
    static constexpr std::size_t kCapacity = 128;

    // Reads the device's pipeline cache from disk, if there is one. The pipelines are used by commands that are
    // submitted to the timeline, which must outlive them. Throws vk::SystemError.
    explicit Pipelines(const Timeline& timeline, std::size_t capacity = kCapacity);

    // Returns the kernel's pipeline, compiled on first use. Where there are too many, drops the one that was used least
    // recently of those that nobody else holds. Throws vk::SystemError, and std::invalid_argument if the package has
    // no such shader.
    SharedKernel get(const Kernel& kernel);

    // Notes that the pipeline is used by commands up to the point.
    void used(CompiledKernel& kernel, Point point) {
        kernel.last_use = point;
        kernel.turn = ++turn_;
    }

    // All pipelines share this layout of push constants and nothing else.
    [[nodiscard]] PipelineLayout layout() const { return *layout_; }

    // Writes the pipeline cache if anything was compiled since it was last written. `at_leisure` puts off a write that
    // follows the last one by less than a second.
    void save(bool at_leisure) noexcept;

    [[nodiscard]] std::size_t size() const { return size_; }  // thread-safe

private:
    void make_room();

    const Timeline& timeline_;
    const LogicalDevice& device_;
    const std::size_t capacity_;
    std::filesystem::path file_;
    raii::PipelineLayout layout_ = nullptr;
    raii::PipelineCache cache_ = nullptr;
    std::map<Kernel, SharedKernel> pipelines_;
    std::uint64_t turn_ = 0;
    std::atomic<std::size_t> size_ = 0;
    bool unsaved_ = false;
    double saved_at_ = -1e9;  // seconds of the steady clock
};

}  // namespace vkrnn::vk
