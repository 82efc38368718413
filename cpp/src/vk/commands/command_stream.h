// Records command buffers one after the other and submits them to a queue.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "vk/device/timeline.h"
#include "vk/device/vulkan.h"
#include "vk/memory/allocation.h"

namespace vkrnn::vk {

// A command buffer with a pool of its own.
struct Commands {
    raii::CommandPool pool = nullptr;
    raii::CommandBuffer buffer = nullptr;
};

class CommandStream {
public:
    // Only the stream may submit to the timeline, which must outlive it. Throws vk::SystemError.
    explicit CommandStream(Timeline& timeline) : timeline_(timeline) {}

    // Returns the command buffer to record into; valid from begin() to submit().
    [[nodiscard]] const raii::CommandBuffer& commands() const { return slots_[current_].commands.buffer; }

    // Opens the next command buffer. Its commands run after everything submitted before. Waits if all command buffers
    // are in flight. `reusable`: the caller will take() it. Throws like Timeline::wait.
    void begin(const Poll& poll, bool reusable = false);
    // is_open() tells whether a command buffer is open; discard() drops what is recorded but not submitted.
    [[nodiscard]] bool is_open() const { return open_; }
    void discard() { open_ = false; }

    // Makes the next submission wait until another timeline has reached the point.
    void after(const Timeline& other, Point point);

    // Records a copy of to.bytes bytes, which may be 0.
    void copy(const Slice& from, const Slice& to) const;

    // Submits the open command buffer. Returns the point at which it is done and its writes are visible to the host.
    // Throws vk::SystemError.
    Point submit();
    // Returns the open command buffer instead of submitting it. The caller may submit it more than once, even while it
    // is in flight, and must keep it until the timeline has reached the points of all submissions.
    [[nodiscard]] Commands take();
    // Submits command buffers that run one after the other. Otherwise like submit().
    Point submit(std::span<const CommandBufferSubmitInfo> commands);
    // Waits for everything submitted. Throws like Timeline::wait.
    void finish(const Poll& poll) const { timeline_.wait(timeline_.submitted(), poll); }
    // Returns the point of the last submission.
    [[nodiscard]] Point submitted() const { return timeline_.submitted(); }
    // Waits like Timeline::settle.
    void settle(Point point) const noexcept { timeline_.settle(point); }

    // Starts a loop of dispatches. The first command buffers hold up to about `capacity` dispatches. `paced`: the
    // caller waits for the loop.
    void start(double capacity, bool paced);
    // Called before begin() within a loop. In a paced loop, waits for the last command buffer but one. At most two are
    // then in flight, so that an interrupt takes effect soon. Throws like Timeline::wait.
    void pace(const Poll& poll);

    // Returns how many dispatches the open command buffer should hold. In a paced loop the number adapts to the
    // device's speed. An interrupt then takes effect soon whatever a dispatch costs, and long calls need few
    // submissions.
    [[nodiscard]] std::uint32_t capacity() const { return capacity_; }

private:
    using Clock = std::chrono::steady_clock;
    struct Slot {
        Commands commands;
        Point point = 0;  // the last submission of the commands
    };

    void barrier(PipelineStageFlags2 stages, AccessFlags2 access) const;
    void end();
    void adapt(Clock::time_point submitted);

    Timeline& timeline_;
    std::array<Slot, 32> slots_;  // a ring: the host may be this far ahead of the device
    std::size_t current_ = 0;
    bool open_ = false;
    const Timeline* other_ = nullptr;  // the next submission waits for other_point_ of it
    Point other_point_ = 0;
    // State of the loop, such as when its last two command buffers were submitted, when a finished one was last
    // noticed, and when the poll was last called.
    std::uint32_t capacity_ = 0;
    bool paced_ = false;
    std::uint32_t loop_submissions_ = 0;
    std::array<Clock::time_point, 2> submitted_at_;
    Clock::time_point completed_at_, polled_at_;
};

}  // namespace vkrnn::vk
