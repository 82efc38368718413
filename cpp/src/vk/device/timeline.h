// Submits command buffers to a queue and counts them: submission n is done when the timeline reaches point n.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "vk/device/logical_device.h"
#include "vk/device/vulkan.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

using Point = std::uint64_t;  // a value of the timeline; 0 has always been reached

// Thread-safe except for submit().
class Timeline {
public:
    // `queue` must belong to the device. Throws vk::SystemError.
    Timeline(std::shared_ptr<const LogicalDevice> device, const LogicalDevice::DeviceQueue& queue);

    [[nodiscard]] const std::shared_ptr<const LogicalDevice>& device() const { return device_; }

    [[nodiscard]] std::uint32_t family() const { return queue_.family; }

    // Submits the command buffers and returns the point at which they are done. If `other` is not null, the commands
    // wait until that timeline has reached `other_point`. Only one thread may call this at a time. Throws
    // vk::SystemError.
    Point submit(std::span<const CommandBufferSubmitInfo> commands, const Timeline* other, Point other_point);

    // Returns the point of the last submission.
    [[nodiscard]] Point submitted() const { return submitted_; }

    // Waits until the timeline has reached the point. Throws Interrupted if the poll returns true, in which case the
    // device continues; Forked like ask(); and vk::SystemError.
    void wait(Point point, const Poll& poll) const;

    // Waits until the device has finished all work up to the point. A lost device counts as finished. If the driver
    // fails to wait, tries again for ten seconds. Returns at once in a forked child, which cannot wait for the device.
    void settle(Point point) const noexcept;

    // Returns the point that the timeline has reached; nothing if the driver fails.
    [[nodiscard]] std::optional<Point> reached() const noexcept;

    // Makes waiting for the next submission throw vk::DeviceLostError, for tests.
    void lose_next() { lost_from_ = submitted_ + 1; }

private:
    std::shared_ptr<const LogicalDevice> device_;
    const LogicalDevice::DeviceQueue& queue_;
    const long process_;
    raii::Semaphore semaphore_ = nullptr;
    std::atomic<Point> submitted_ = 0;
    std::atomic<Point> lost_from_ = ~Point{0};
};

}  // namespace vkrnn::vk
