// Records a plan whose buffers are bound to memory into command buffers, and submits them.
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
#include "vk/commands/timings.h"
#include "vk/device/vulkan.h"
#include "vk/memory/pool.h"
#include "vk/pipelines/pipelines.h"
#include "vkrnn/device.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

// A copy from one piece of device memory to another.
struct SliceCopy {
    Slice from, to;
};

class Recorder {
public:
    // All must outlive the recorder. Throws vk::SystemError.
    Recorder(Pool& pool, Pipelines& pipelines, Stream& stream);

    // Compiles the kernels that are not compiled yet, records the copies `before`, the plan's steps and the copies
    // `after`, submits them and returns the point at which they are done. `placements` are the slices of the plan's
    // buffers, `full` the packed ones that need not be filled. Recording starts in the stream's command buffer, opened
    // here if none is, and goes on in further ones if the plan is long. A call that fits into one command buffer and
    // needs no copies is cached when it is repeated, and replayed from then on. Throws Interrupted and vk::SystemError,
    // like Pipelines::get, and std::logic_error for a plan that contradicts itself.
    Point run(const std::shared_ptr<const Plan>& plan, std::span<const Slice> placements,
              std::span<const std::size_t> full, std::span<const SliceCopy> before, std::span<const SliceCopy> after,
              std::string_view label, const Poll& poll);

    // last_timing_slot() returns the slot that holds the timestamps of the last run. Once that run is done,
    // device_seconds() returns the time from its first step to the end of its last, without copies; nothing if a later
    // run has reset the slot, 0 if the device has no timestamps.
    [[nodiscard]] std::uint32_t last_timing_slot() const { return timings_.slot(); }
    [[nodiscard]] std::optional<double> device_seconds(std::uint32_t slot) const noexcept {
        return timings_.seconds(slot);
    }

    // These are thread-safe.
    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }  // submitted so far
    [[nodiscard]] std::uint64_t replayed() const { return replayed_; }      // runs submitted from the cache

private:
    // A dispatch whose pipeline is looked up and whose push constants hold addresses.
    struct Ready {
        Pipeline pipeline;
        std::array<std::byte, kPushBytes> push;
        std::uint32_t push_bytes;
        std::optional<std::uint32_t> counter;  // as in Dispatch
        std::array<std::uint32_t, 3> groups;
    };

    void record(const Plan& plan, std::span<const Slice> placements, std::span<const SliceCopy> before,
                std::span<const SliceCopy> after);
    // Lets go of the plan's pipelines, which what was submitted uses.
    void release_kernels();
    // Submits cached commands.
    Point submit(CachedCommands& cached);
    [[nodiscard]] Ready ready(const Dispatch& dispatch, std::span<const Slice> placements) const;
    // Whether a step only fills a packed buffer that is full.
    [[nodiscard]] bool is_left_out(std::size_t fills) const;
    void step(const Clear& clear, std::span<const Slice> placements);
    void step(const Dispatch& dispatch, std::span<const Slice> placements);
    void step(const Loop& loop, std::span<const Slice> placements);
    void record(const Ready& ready, bool after);
    // Writes the constant buffers. They hold addresses of this call's buffers, so every call writes them, unless it is
    // replayed; since the writes are commands, they wait until earlier calls have read theirs.
    void fill_constants(const Plan& plan, std::span<const Slice> placements);
    // Writes them where the commands to be cached find them from then on. Returns the call's placements with those.
    std::vector<Slice> keep_constants(const Plan& plan, std::span<const Slice> placements);
    void copy(std::span<const SliceCopy> copies);
    // Makes `stages` wait for all pending writes. The writes stay pending for other stages; the caller clears them.
    void barrier(PipelineStageFlags2 stages, AccessFlags2 access);
    // Begin and end what is recorded into one command buffer.
    void open();
    void close();
    // Submits the open command buffer and continues in another one if it holds enough dispatches.
    void split_if_full();

    Pool& pool_;
    const LogicalDevice& device_;
    Pipelines& pipelines_;
    Stream& stream_;
    Timings timings_;
    bool labels_;
    std::atomic<std::uint64_t> dispatches_ = 0, replayed_ = 0;
    CommandBufferCache cache_;

    // State of the current run; members keep their memory between runs.
    std::vector<SharedKernel> plan_kernels_;
    std::vector<Ready> body_;
    std::vector<CommandBufferSubmitInfo> submitted_;
    std::vector<std::byte> block_;
    std::string label_;
    std::span<const std::size_t> full_;
    const Poll* poll_ = nullptr;
    std::unique_ptr<CachedCommands> to_cache_;  // set while the run is recorded for the cache
    // State of the open command buffer.
    Pipeline bound_;
    std::uint32_t recorded_ = 0;
    // These are set while dispatches or transfers have written memory that no later command has waited for.
    bool computed_ = false;
    bool left_out_wait_ = false;  // a dispatch that was left out would have waited
    bool transferred_ = false;
};

}  // namespace vkrnn::vk
