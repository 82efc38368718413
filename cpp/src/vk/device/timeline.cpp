#include "vk/device/timeline.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "run/poll.h"
#include "vkrnn/poll_interval.h"

namespace vkrnn::vk {

Timeline::Timeline(std::shared_ptr<const LogicalDevice> device, const LogicalDevice::DeviceQueue& queue)
    : device_(std::move(device)), queue_(queue), process_(system::process_id()) {
    const SemaphoreTypeCreateInfo type{.semaphoreType = SemaphoreType::eTimeline};
    semaphore_ = raii::Semaphore(device_->handle(), SemaphoreCreateInfo{.pNext = &type});
}

Point Timeline::submit(std::span<const CommandBufferSubmitInfo> commands, const Timeline* other, Point other_point) {
    const Point point = submitted_ + 1;
    const SemaphoreSubmitInfo wait{.semaphore = other != nullptr ? *other->semaphore_ : nullptr,
                                   .value = other_point,
                                   .stageMask = PipelineStageFlagBits2::eAllCommands};
    const SemaphoreSubmitInfo signal{
        .semaphore = *semaphore_, .value = point, .stageMask = PipelineStageFlagBits2::eAllCommands};
    queue_.queue.submit2(SubmitInfo2{.waitSemaphoreInfoCount = other != nullptr ? 1u : 0u,
                                     .pWaitSemaphoreInfos = &wait,
                                     .commandBufferInfoCount = static_cast<std::uint32_t>(commands.size()),
                                     .pCommandBufferInfos = commands.data(),
                                     .signalSemaphoreInfoCount = 1,
                                     .pSignalSemaphoreInfos = &signal});
    submitted_ = point;
    return point;
}

void Timeline::wait(Point point, const Poll& poll) const {
    if (point == 0) {
        return;
    }
    const SemaphoreWaitInfo info{.semaphoreCount = 1, .pSemaphores = &*semaphore_, .pValues = &point};
    const auto interval = static_cast<std::uint64_t>(poll_interval.load().count());
    if (interval == 0) {
        ask(poll);
    }
    while (device_->handle().waitSemaphores(info, interval) == Result::eTimeout) {
        ask(poll);
    }
    if (point >= lost_from_) {
        throw ::vk::DeviceLostError("vkWaitSemaphores (simulated)");
    }
}

void Timeline::settle(Point point) const noexcept {
    if (process_ != system::process_id()) return;
    constexpr int kTries = 1000;
    constexpr auto kPause = std::chrono::milliseconds(10);
    for (int i = 0; i < kTries; ++i) {
        try {
            return wait(point, {});
        } catch (const ::vk::DeviceLostError&) {  // a lost device counts as finished
            return;
        } catch (...) {  // the driver lacks memory for waiting, but the device continues
            std::this_thread::sleep_for(kPause);
        }
    }
}

std::optional<Point> Timeline::reached() const noexcept {
    try {
        return std::min<Point>(semaphore_.getCounterValue(), lost_from_ - 1);
    } catch (...) {
        return std::nullopt;
    }
}

}  // namespace vkrnn::vk
