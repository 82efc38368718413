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
#include "vk/commands/command_stream.h"
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
    // The arguments must outlive the recorder. Throws vk::SystemError.
    Recorder(Pool& pool, Pipelines& pipelines, CommandStream& stream);

    // Records the copies `before`, the plan's steps and the copies `after`, submits them and returns the point at which
    // they are done. Compiles missing kernels first. `placements` are the slices of the plan's buffers, `full` the
    // prepacked buffers that need not be filled. Recording starts in the stream's open command buffer, or opens one,
    // and continues in further ones if the plan is long. A repeated call is cached and replayed from then on, if it
    // fits into one command buffer and needs no copies. Throws Interrupted, vk::SystemError, what Pipelines::get
    // throws, and std::logic_error if the plan contradicts itself.
    Point run(const std::shared_ptr<const Plan>& plan, std::span<const Slice> placements,
              std::span<const std::size_t> full, std::span<const SliceCopy> before, std::span<const SliceCopy> after,
              std::string_view label, const Poll& poll);

    // last_timing_slot() returns the slot with the timestamps of the last run. Once that run is done, device_seconds()
    // returns the time from the start of its first step to the end of its last, without copies. It returns nothing if a
    // later run has reset the slot, and 0 if the device has no timestamps.
    [[nodiscard]] std::uint32_t last_timing_slot() const { return timings_.slot(); }
    [[nodiscard]] std::optional<double> device_seconds(std::uint32_t slot) const noexcept {
        return timings_.seconds(slot);
    }

    // These are thread-safe.
    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }  // submitted so far
    [[nodiscard]] std::uint64_t replayed() const { return replayed_; }      // runs submitted from the cache

private:
    // A dispatch with its pipeline, and with addresses in its push constants.
    struct Ready {
        Pipeline pipeline;
        std::array<std::byte, kPushBytes> push;
        std::uint32_t push_bytes;
        std::optional<std::uint32_t> counter;  // as in Dispatch
        std::array<std::uint32_t, 3> groups;
        std::optional<DescriptorBufferInfo> parameters;  // of a time loop
    };

    void record(const Plan& plan, std::span<const Slice> placements, std::span<const SliceCopy> before,
                std::span<const SliceCopy> after);
    // Releases the plan's pipelines, after marking them as used by everything submitted so far.
    void release_kernels();
    // Submits cached commands.
    Point submit(CachedCommands& cached);
    [[nodiscard]] Ready ready(const Dispatch& dispatch, std::span<const Slice> placements) const;
    void step(const Clear& clear, std::span<const Slice> placements);
    void step(const Dispatch& dispatch, std::span<const Slice> placements);
    void step(const Loop& loop, std::span<const Slice> placements);
    void step(const Branches& branches, std::span<const Slice> placements);
    // Records what comes before the pieces, a diagonal of pieces after the other, and what comes after them.
    void step(const Wavefront& wavefront, std::span<const Slice> placements);
    // Records sequences that run at the same time: their first dispatches, without barriers between them, then their
    // second ones, and so on.
    void together(std::span<const Sequence* const> sequences, std::span<const Slice> placements);
    // Calls `record` for all dispatches of a loop.
    template <class Record>
    void unroll(const Loop& loop, std::span<const Slice> placements, const Record& record);
    void record(const Ready& ready, bool after);
    // Writes the constant buffers. Every call does so unless it is replayed, because they hold addresses of the call's
    // buffers. The writes are commands, so they wait until earlier calls have read theirs.
    void fill_constants(const Plan& plan, std::span<const Slice> placements);
    // Writes the constants to memory of their own, for commands to be cached. Returns the placements with that memory.
    std::vector<Slice> keep_constants(const Plan& plan, std::span<const Slice> placements);
    void copy(std::span<const SliceCopy> copies);
    // Makes `stages` wait for all pending writes. The writes stay pending for other stages; the caller clears them.
    void barrier(PipelineStageFlags2 stages, AccessFlags2 access);
    // Begin and end the recording into one command buffer.
    void open();
    void close();
    // If the open command buffer has enough dispatches, submits it and continues in another one.
    void begin_next_if_full();

    Pool& pool_;
    const LogicalDevice& device_;
    Pipelines& pipelines_;
    CommandStream& stream_;
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
    const Plan* plan_ = nullptr;
    std::unique_ptr<CachedCommands> to_cache_;  // set while a run is recorded for the cache
    // State of the open command buffer.
    Pipeline bound_;
    std::uint32_t recorded_ = 0;
    // Set while dispatches or transfers have written memory and no later command has waited for the writes.
    bool computed_ = false;
    bool left_out_wait_ = false;  // a skipped dispatch would have waited
    bool transferred_ = false;
};

}  // namespace vkrnn::vk
