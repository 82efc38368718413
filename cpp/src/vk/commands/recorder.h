// Turns a plan with its buffers placed into command buffers, and submits them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "vk/commands/command_cache.h"
#include "vk/commands/stream.h"
#include "vk/device/vulkan.h"
#include "vk/memory/allocation.h"
#include "vk/pipelines/pipelines.h"
#include "vkrnn/device.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

// A copy from one piece of device memory to another.
struct Copy {
    Slice from, to;
};

class Recorder {
public:
    // All must outlive the recorder. Throws vk::SystemError.
    Recorder(const LogicalDevice& device, Kernels& kernels, Stream& stream);

    // Compiles what is missing of the plan's kernels and records the plan into the stream's command buffer, which it
    // opens where none is, and into more where one would take long, between the copies `before` and `after`; submits
    // them and says when they are done. `placements` are the plan's buffers. A call that comes again, and needs neither
    // copies nor more than one command buffer, is recorded only once. Throws Interrupted and vk::SystemError, like
    // Kernels::get, and std::logic_error for a plan that contradicts itself.
    Point run(const std::shared_ptr<const Plan>& plan, std::span<const Slice> placements, std::span<const Copy> before,
              std::span<const Copy> after, std::string_view label, const Poll& poll);

    // Which timestamps the last run has, and what they say once it is done: from the first step to the end of the last,
    // copies excluded. Nothing where they do not say it any more, 0 where the device has no timestamps. As many runs as
    // the stream has command buffers may be on their way.
    [[nodiscard]] std::uint32_t last_timing() const { return timing_; }
    [[nodiscard]] std::optional<double> device_seconds(std::uint32_t timing) const;

    // Thread-safe.
    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }  // submitted so far
    [[nodiscard]] std::uint64_t repeated() const { return repeated_; }      // runs that were not recorded anew

private:
    // A dispatch with its pipeline and addresses looked up.
    struct Ready {
        Pipeline pipeline;
        std::array<std::byte, kPushBytes> push;
        std::uint32_t push_bytes;
        std::optional<std::uint32_t> counter;  // see Dispatch
        std::array<std::uint32_t, 3> groups;
    };

    void record(const Plan& plan, std::span<const Slice> placements, std::span<const Copy> before,
                std::span<const Copy> after);
    Point repeat(Recording& recording);
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
    std::uint32_t timing_ = 0, next_timing_ = 0;
    bool labels_;
    std::atomic<std::uint64_t> dispatches_ = 0, repeated_ = 0;
    Recordings recordings_;

    // Of the run going on; kept to save allocations.
    std::vector<Pipeline> pipelines_;
    std::vector<Ready> body_;
    std::vector<std::byte> block_;
    std::string label_;
    const Poll* poll_ = nullptr;
    std::unique_ptr<Recording> kept_;  // what the run is to be kept as
    // Of the command buffer being recorded.
    Pipeline bound_;
    std::uint32_t recorded_ = 0;
    // What no later command has waited for yet.
    bool computed_ = false;
    bool transferred_ = false;
};

}  // namespace vkrnn::vk
