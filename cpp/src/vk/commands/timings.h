// Measures calls by timestamps around them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "vk/device/vulkan.h"

namespace vkrnn::vk {

class LogicalDevice;

// A ring of pairs of timestamps. Resetting one of them costs the device as much as resetting many, and more than
// writing it, so a half of the ring is reset when its first pair comes. The times of the calls just before are in the
// other half. (When validation layers find a submission done they mark what it has written as available, also over a
// reset that is submitted at that moment.)
class Timings {
public:
    // The device must outlive the object. Commands are submitted to queues of the family. Throws vk::SystemError.
    Timings(const LogicalDevice& device, std::uint32_t family);

    // Moves on to the next pair.
    void next();
    // Notes that the commands of the current pair were submitted, and the reset with them if it was due.
    void submitted() { must_reset_ = false; }
    [[nodiscard]] std::uint32_t slot() const { return slot_; }

    // These record the first timestamp of the current pair, after a reset of its half if that is due, and the second.
    void begin(const raii::CommandBuffer& commands) const;
    void end(const raii::CommandBuffer& commands) const;

    // Appends the command buffer to be submitted, with such commands around it.
    void around(CommandBuffer commands, std::vector<CommandBufferSubmitInfo>& submitted) const;

    // Returns the seconds between the pair's timestamps; nothing if they are not written, or were reset, and 0 if the
    // device has none.
    [[nodiscard]] std::optional<double> seconds(std::uint32_t slot) const noexcept;

private:
    static constexpr std::uint32_t kHalf = 32, kSlots = 2 * kHalf;

    void reset(const raii::CommandBuffer& commands, std::uint32_t half) const;
    void write(const raii::CommandBuffer& commands, std::uint32_t which) const;

    const LogicalDevice& device_;
    raii::QueryPool queries_ = nullptr;
    raii::CommandPool pool_ = nullptr;
    std::vector<raii::CommandBuffer> recorded_;  // a pair's begin and end, for each pair; then the halves' resets
    std::uint32_t slot_ = kSlots - 1;
    bool must_reset_ = true;
};

}  // namespace vkrnn::vk
