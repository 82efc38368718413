#include "vk/commands/command_stream.h"

#include <algorithm>
#include <utility>

#include "run/poll.h"
#include "vkrnn/poll_interval.h"

namespace vkrnn::vk {
namespace {

using namespace std::chrono_literals;
using Stage = PipelineStageFlagBits2;
using Access = AccessFlagBits2;

constexpr std::uint32_t kSmallestFirstCapacity = 16;
constexpr std::uint32_t kLargestCapacity = 8192;

Commands make_commands(const Timeline& timeline) {
    const raii::Device& device = timeline.device()->handle();
    Commands made;
    made.pool = raii::CommandPool(device, CommandPoolCreateInfo{.flags = CommandPoolCreateFlagBits::eTransient,
                                                                .queueFamilyIndex = timeline.family()});
    raii::CommandBuffers buffers(
        device, CommandBufferAllocateInfo{
                    .commandPool = *made.pool, .level = CommandBufferLevel::ePrimary, .commandBufferCount = 1});
    made.buffer = std::move(buffers.front());
    return made;
}

}  // namespace

void CommandStream::begin(const Poll& poll, bool reusable) {
    const std::size_t next = (current_ + 1) % slots_.size();
    timeline_.wait(slots_[next].point, poll);
    current_ = next;
    Commands& commands = slots_[next].commands;
    if (*commands.pool) {
        commands.pool.reset();
    } else {
        commands = make_commands(timeline_);
    }
    commands.buffer.begin(CommandBufferBeginInfo{.flags = reusable ? CommandBufferUsageFlagBits::eSimultaneousUse
                                                                   : CommandBufferUsageFlagBits::eOneTimeSubmit});
    open_ = true;
    barrier(Stage::eAllCommands, Access::eMemoryRead | Access::eMemoryWrite);
}

void CommandStream::copy(const Slice& from, const Slice& to) const {
    if (to.bytes != 0) {
        const BufferCopy region{.srcOffset = from.offset, .dstOffset = to.offset, .size = to.bytes};
        commands().copyBuffer(from.buffer, to.buffer, region);
    }
}

void CommandStream::after(const Timeline& other, Point point) {
    // A semaphore wait costs the driver more than this query, even if the point was reached long ago.
    if (point != 0 && &other != &timeline_ && other.reached().value_or(0) < point) {
        other_ = &other;
        other_point_ = point;
    }
}

void CommandStream::end() {
    barrier(Stage::eHost, Access::eHostRead);
    commands().end();
    open_ = false;
}

Point CommandStream::submit() {
    end();
    Slot& slot = slots_[current_];
    slot.point = submit(std::array{CommandBufferSubmitInfo{.commandBuffer = *slot.commands.buffer}});
    return slot.point;
}

Commands CommandStream::take() {
    end();
    return std::exchange(slots_[current_].commands, {});
}

Point CommandStream::submit(std::span<const CommandBufferSubmitInfo> commands) {
    const Point point = timeline_.submit(commands, std::exchange(other_, nullptr), other_point_);
    submitted_at_[loop_submissions_++ % 2] = Clock::now();
    return point;
}

void CommandStream::barrier(PipelineStageFlags2 stages, AccessFlags2 access) const {
    const MemoryBarrier2 memory{.srcStageMask = Stage::eAllCommands,
                                .srcAccessMask = Access::eMemoryWrite,
                                .dstStageMask = stages,
                                .dstAccessMask = access};
    commands().pipelineBarrier2(DependencyInfo{.memoryBarrierCount = 1, .pMemoryBarriers = &memory});
}

void CommandStream::start(double capacity, bool paced) {
    paced_ = paced;
    capacity_ = static_cast<std::uint32_t>(std::clamp<double>(capacity, kSmallestFirstCapacity, kLargestCapacity));
    loop_submissions_ = 0;
    polled_at_ = completed_at_ = Clock::now();
}

void CommandStream::pace(const Poll& poll) {
    // If the device is faster than the recording, no wait happens that would call the poll. So it is called here.
    if (const auto now = Clock::now(); now - polled_at_ >= poll_interval.load()) {
        polled_at_ = now;
        ask(poll);
    }
    if (paced_ && loop_submissions_ >= 2) {
        timeline_.wait(timeline_.submitted() - 1, poll);
        adapt(submitted_at_[loop_submissions_ % 2]);
    }
}

void CommandStream::adapt(Clock::time_point submitted) {
    const auto now = Clock::now();
    const auto took = now - std::max(submitted, completed_at_);
    completed_at_ = now;
    if (took < 50ms) {
        capacity_ = std::min(capacity_ * 2, kLargestCapacity);
    } else if (took > 150ms) {
        capacity_ = std::max(capacity_ / 2, 1u);
    }
}

}  // namespace vkrnn::vk
