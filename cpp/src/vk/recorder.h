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
#include "stream.h"
#include "team.h"
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
    // All must outlive the recorder. Throws vk::SystemError, and like Kernels::get where there are helpers.
    Recorder(const LogicalDevice& device, Kernels& kernels, Stream& stream,
             std::span<const std::unique_ptr<Helper>> helpers);

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

    // Whether helpers were waited for in vain: what was computed since is wrong. Thread-safe.
    [[nodiscard]] bool left_alone() const;

private:
    [[nodiscard]] Ready ready(const Dispatch& dispatch, std::span<const Slice> placements) const;
    void step(const Clear& clear, std::span<const Slice> placements);
    void step(const Dispatch& dispatch, std::span<const Slice> placements);
    void step(const Loop& loop, std::span<const Slice> placements);
    [[nodiscard]] bool shared(const Ready& ready) const;
    void record(const Ready& ready, bool after);
    void share(const Ready& ready);
    void meet();
    void open_helpers();
    void fill_constants(const Plan& plan, std::span<const Slice> placements);
    void copy(std::span<const Copy> copies);
    void barrier(PipelineStageFlags2 stages, AccessFlags2 access);
    void timestamp(std::uint32_t which, PipelineStageFlagBits2 stage);
    void open();
    Point close();
    void split();
    void split_if_full();

    const LogicalDevice& device_;
    Stream& stream_;
    std::vector<Member> members_;  // the device, then its helpers
    raii::QueryPool queries_ = nullptr;
    std::uint32_t timing_ = 0;
    bool labels_;
    std::atomic<std::uint64_t> dispatches_ = 0;

    // Of the run going on; kept to save allocations.
    std::vector<Ready> body_;
    std::vector<std::byte> block_;
    std::string label_;
    const Poll* poll_ = nullptr;
    // Of the command buffer being recorded.
    std::uint32_t recorded_ = 0;
    bool helped_ = false;  // helpers have one open as well
    // What no later command has waited for yet.
    bool computed_ = false;
    bool transferred_ = false;
    // What the device did that its helpers have not waited for, up to the last barrier and since; and the reverse.
    bool ahead_ = false, pending_ = false, lent_ = false;
    std::uint32_t met_ = 0, submitted_meetings_ = 0;  // what meetings have raised their number to, of all runs
};

}  // namespace vkrnn::vk
