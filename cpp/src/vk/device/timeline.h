// The timeline of a queue: the n-th submission is done when the timeline reaches n.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "vk/device/logical_device.h"
#include "vk/device/vulkan.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

using Point = std::uint64_t;  // of the timeline; 0 has always been reached

// All but submit() may be called by any thread.
class Timeline {
public:
    // `lane` is one of the device's. Throws vk::SystemError.
    Timeline(std::shared_ptr<const LogicalDevice> device, const LogicalDevice::Lane& lane);

    [[nodiscard]] const std::shared_ptr<const LogicalDevice>& device() const { return device_; }

    [[nodiscard]] std::uint32_t family() const { return lane_.family; }

    // Submits the command buffer, and says when it is done. It waits for another timeline to have reached
    // `other_point`. One thread at a time. Throws vk::SystemError.
    Point submit(const raii::CommandBuffer& commands, const Timeline* other, Point other_point);

    // Of the last submission.
    [[nodiscard]] Point submitted() const { return submitted_; }

    // Waits until the timeline has reached the point. Throws Interrupted where the poll says so, with the device still
    // at work, and vk::SystemError.
    void wait(Point point, const Poll& poll) const;

    // Waits for the device to be done with what led up to the point, whatever may come; a lost device is.
    void settle(Point point) const noexcept;

    // What the timeline has reached; nothing, where the driver does not say any more.
    [[nodiscard]] std::optional<Point> reached() const noexcept;

    // Makes waiting for the next submission throw vk::DeviceLostError. For tests.
    void lose_next() { lost_from_ = submitted_ + 1; }

private:
    std::shared_ptr<const LogicalDevice> device_;
    const LogicalDevice::Lane& lane_;
    raii::Semaphore semaphore_ = nullptr;
    std::atomic<Point> submitted_ = 0;
    std::atomic<Point> lost_from_ = ~Point{0};
};

}  // namespace vkrnn::vk
