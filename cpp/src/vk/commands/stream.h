// Command buffers on their way through the queue.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "vk/device/timeline.h"
#include "vk/device/vulkan.h"
#include "vk/memory/allocation.h"

namespace vkrnn::vk {

// A command buffer with the pool that is its own.
struct Commands {
    raii::CommandPool pool = nullptr;
    raii::CommandBuffer buffer = nullptr;
};

class Stream {
public:
    // The stream alone submits to the timeline, which must outlive it. Throws vk::SystemError.
    explicit Stream(Timeline& timeline) : timeline_(timeline) {}

    // The command buffer to record into, from begin() to submit().
    [[nodiscard]] const raii::CommandBuffer& commands() const { return slots_[current_].commands.buffer; }

    // Opens the next command buffer; what it does comes after everything submitted before. Waits where too many are on
    // their way. `again`: it may be submitted more than once. Throws like Timeline::wait.
    void begin(const Poll& poll, bool again = false);
    // Whether one is open; forgets what is recorded but not submitted.
    [[nodiscard]] bool is_open() const { return open_; }
    void discard() { open_ = false; }

    // The next submission waits for another timeline to have reached the point.
    void after(const Timeline& other, Point point);

    // Records a copy of as many bytes as `to` has, which may be none.
    void copy(const Slice& from, const Slice& to) const;

    // Submits the command buffer being recorded, and says when it is done, and the host sees what it wrote.
    // Throws vk::SystemError.
    Point submit();
    // Hands over the command buffer that was submitted last, to be submitted again; it must outlive the timeline's
    // reaching its points.
    [[nodiscard]] Commands take();
    // Submits it once more, even while it is on its way.
    Point submit(const Commands& commands);
    // Waits for everything submitted. Throws like Timeline::wait.
    void finish(const Poll& poll) const { timeline_.wait(timeline_.submitted(), poll); }
    // Like Timeline::settle.
    void settle(Point point) const noexcept { timeline_.settle(point); }

    // A loop of dispatches begins. A command buffer is to hold up to about `capacity` of them at first.
    void start(double capacity);
    // To be called before begin() in the loop. No more than two of its command buffers are ever on their way, so that
    // an interrupt acts soon: it waits for the last but one. Throws like Timeline::wait.
    void pace(const Poll& poll);

    // How many dispatches the command buffer being recorded should hold: few at first, more while they are quick, so
    // that an interrupt acts soon whatever a dispatch costs, and long calls take few submissions.
    [[nodiscard]] std::uint32_t capacity() const { return capacity_; }

private:
    using Clock = std::chrono::steady_clock;
    struct Slot {
        Commands commands;
        Point point = 0;  // of its last submission
    };

    void barrier(PipelineStageFlags2 stages, AccessFlags2 access) const;
    void adapt(Clock::time_point submitted);

    Timeline& timeline_;
    std::array<Slot, 32> slots_;  // used in turn; the host may be this far ahead of the device
    std::size_t current_ = 0;
    bool open_ = false;
    const Timeline* other_ = nullptr;  // that the next submission waits for
    Point other_point_ = 0;
    // Of the loop: when its last command buffers were submitted, one was last seen done, and the poll last asked.
    std::uint32_t capacity_ = 0;
    std::uint32_t loop_submissions_ = 0;
    std::array<Clock::time_point, 2> submitted_at_;
    Clock::time_point completed_at_, polled_at_;
};

}  // namespace vkrnn::vk
