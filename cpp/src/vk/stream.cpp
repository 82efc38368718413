#include "stream.h"

#include <algorithm>

#include "vkrnn/error.h"

namespace vkrnn::vk {
namespace {

using namespace std::chrono_literals;

constexpr auto kPollInterval = 20ms;
constexpr std::uint32_t kFirstCapacity = 128;  // at least
constexpr std::uint32_t kLargestCapacity = 8192;

}  // namespace

Stream::Stream(const LogicalDevice& device) : device_(device) {
    for (Slot& slot : slots_) {
        slot.pool =
            raii::CommandPool(device.handle(), CommandPoolCreateInfo{.flags = CommandPoolCreateFlagBits::eTransient,
                                                                     .queueFamilyIndex = device.queue_family()});
        raii::CommandBuffers buffers(device.handle(), CommandBufferAllocateInfo{.commandPool = *slot.pool,
                                                                                .level = CommandBufferLevel::ePrimary,
                                                                                .commandBufferCount = 1});
        slot.commands = std::move(buffers.front());
        slot.fence = raii::Fence(device.handle(), FenceCreateInfo{});
    }
}

void Stream::start(const Poll& poll, double capacity) {
    poll_ = &poll;
    stop_ = false;
    capacity_ = static_cast<std::uint32_t>(std::clamp<double>(capacity, kFirstCapacity, kLargestCapacity));
    polled_ = completed_ = Clock::now();
}

void Stream::begin() {
    poll_now_and_then();
    if (stop_) {
        finish();
    }
    current_ = (current_ + 1) % slots_.size();
    Slot& slot = slots_[current_];
    wait(slot);
    if (stop_) {
        finish();
    }
    slot.pool.reset();
    slot.commands.begin(CommandBufferBeginInfo{.flags = CommandBufferUsageFlagBits::eOneTimeSubmit});
}

void Stream::submit() {
    Slot& slot = slots_[current_];
    slot.commands.end();
    const CommandBufferSubmitInfo commands{.commandBuffer = *slot.commands};
    device_.queue().submit2(SubmitInfo2{.commandBufferInfoCount = 1, .pCommandBufferInfos = &commands}, *slot.fence);
    slot.in_flight = true;
    slot.submitted = Clock::now();
    ++submissions_;
    if (lose_next_) {
        lose_next_ = false;
        throw ::vk::DeviceLostError("vkQueueSubmit2 (simulated)");
    }
}

void Stream::finish() {
    for (std::size_t i = 1; i <= slots_.size(); ++i) {
        wait(slots_[(current_ + i) % slots_.size()]);
    }
    if (stop_) {
        throw Interrupted();
    }
}

void Stream::wait(Slot& slot) {
    if (!slot.in_flight) {
        return;
    }
    constexpr auto kSlice = static_cast<std::uint64_t>(std::chrono::nanoseconds(kPollInterval).count());
    while (device_.handle().waitForFences(*slot.fence, true, kSlice) == Result::eTimeout) {
        poll_now_and_then();
    }
    device_.handle().resetFences(*slot.fence);
    slot.in_flight = false;
    adapt(slot);
}

void Stream::poll_now_and_then() {
    const auto now = Clock::now();
    if (!stop_ && poll_ != nullptr && *poll_ && now - polled_ >= kPollInterval) {
        polled_ = now;
        stop_ = (*poll_)();
    }
}

void Stream::adapt(const Slot& slot) {
    const auto now = Clock::now();
    const auto took = now - std::max(slot.submitted, completed_);
    completed_ = now;
    if (took < 50ms) {
        capacity_ = std::min(capacity_ * 2, kLargestCapacity);
    } else if (took > 150ms) {
        capacity_ = std::max(capacity_ / 2, 1u);
    }
}

void Stream::recover() noexcept {
    poll_ = nullptr;
    for (Slot& slot : slots_) {
        try {
            wait(slot);
        } catch (...) {
            // A lost device is done with everything; its fence may stay as it is, nothing is submitted any more.
            slot.in_flight = false;
        }
    }
    stop_ = false;
    lose_next_ = false;
}

}  // namespace vkrnn::vk
