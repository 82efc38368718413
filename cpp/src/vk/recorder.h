// Turns a plan with its buffers placed into command buffers, and submits them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "allocation.h"
#include "kernel.h"
#include "stream.h"
#include "vkrnn/device.h"
#include "vkrnn/plan.h"
#include "vulkan.h"

namespace vkrnn::vk {

// A copy from one piece of device memory to another.
struct Copy {
    Slice from, to;
};

class Recorder {
public:
    // All three must outlive the recorder. Throws vk::SystemError.
    Recorder(const LogicalDevice& device, Kernels& kernels, Stream& stream);

    // Compiles what is missing of the plan's kernels. Throws like Kernels::get.
    void prepare(const Plan& plan);

    // Records the plan that was prepared into the stream's open command buffer, and into more where one would take
    // long, between the copies `before` and `after`; submits them and says when they are done. `placements` are the
    // plan's buffers. Throws Interrupted and vk::SystemError, and std::logic_error for a plan that contradicts itself.
    Point run(const Plan& plan, std::span<const Slice> placements, std::span<const Copy> before,
              std::span<const Copy> after, std::string_view label, const Poll& poll);

    // Which timestamps the last run has, and what they say once it is done: from the first step to the end of the last,
    // copies excluded. 0 where the device has no timestamps. As many runs as the stream has command buffers may be on
    // their way.
    [[nodiscard]] std::uint32_t last_timing() const { return timing_; }
    [[nodiscard]] double device_seconds(std::uint32_t timing) const;

    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }  // recorded so far; thread-safe

private:
    // A dispatch with its pipeline and addresses looked up.
    struct Ready {
        Pipeline pipeline;
        std::array<std::byte, kPushBytes> push;
        std::uint32_t push_bytes;
        std::array<std::uint32_t, 3> groups;
    };

    [[nodiscard]] Ready ready(const Dispatch& dispatch, std::span<const Slice> placements) const;
    void step(const Clear& clear, std::span<const Slice> placements);
    void step(const Dispatch& dispatch, std::span<const Slice> placements);
    void step(const Loop& loop, std::span<const Slice> placements);
    void record(const Ready& ready, bool after);
    void fill_constants(const Plan& plan, std::span<const Slice> placements);
    void copy(std::span<const Copy> copies);
    void barrier(PipelineStageFlags2 stages, AccessFlags2 access);
    void timestamp(std::uint32_t which, PipelineStageFlagBits2 stage);
    void open();
    Point close();
    void split_if_full();

    const LogicalDevice& device_;
    Kernels& kernels_;
    Stream& stream_;
    raii::QueryPool queries_ = nullptr;
    std::uint32_t timing_ = 0;
    bool labels_;
    std::atomic<std::uint64_t> dispatches_ = 0;

    // Of the run going on; kept to save allocations.
    std::vector<Pipeline> pipelines_;
    std::vector<Ready> body_;
    std::vector<std::byte> block_;
    std::string label_;
    const Poll* poll_ = nullptr;
    // Of the command buffer being recorded.
    Pipeline bound_;
    std::uint32_t recorded_ = 0;
    // What no later command has waited for yet.
    bool computed_ = false;
    bool transferred_ = false;
};

}  // namespace vkrnn::vk
