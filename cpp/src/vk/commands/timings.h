// Measures calls by timestamps around them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "vk/device/vulkan.h"

namespace vkrnn::vk {

class LogicalDevice;

// A ring of timestamp pairs, one pair for each call. Resetting one timestamp costs the device as much as resetting
// many, and more than writing one. So half of the ring is reset when its first pair is used, and the times of the
// latest calls survive in the other half. (When validation layers see that a submission is done, they mark the
// timestamps that it wrote as available, even if a reset has just been submitted.)
class Timings {
public:
    // The device must outlive the object. `family` is the family of the queue that commands are submitted to. Throws
    // vk::SystemError.
    Timings(const LogicalDevice& device, std::uint32_t family);

    // Moves on to the next pair.
    void next();
    // Records that the current pair's commands were submitted, with the reset if it was due.
    void submitted() { must_reset_ = false; }
    [[nodiscard]] std::uint32_t slot() const { return slot_; }

    // begin() records the first timestamp of the current pair, after resetting its half of the ring if that is due.
    // end() records the second.
    void begin(const raii::CommandBuffer& commands) const;
    void end(const raii::CommandBuffer& commands) const;

    // Appends to `submitted` the command buffer, between command buffers that write the current pair.
    void around(CommandBuffer commands, std::vector<CommandBufferSubmitInfo>& submitted) const;

    // Returns the seconds between the pair's timestamps. Returns nothing if they are not written or were reset, and 0
    // if the device has none.
    [[nodiscard]] std::optional<double> seconds(std::uint32_t slot) const noexcept;

private:
    static constexpr std::uint32_t kHalf = 32, kSlots = 2 * kHalf;

    void reset(const raii::CommandBuffer& commands, std::uint32_t half) const;
    void write(const raii::CommandBuffer& commands, std::uint32_t which) const;

    const LogicalDevice& device_;
    raii::QueryPool queries_ = nullptr;
    raii::CommandPool pool_ = nullptr;
    std::vector<raii::CommandBuffer> recorded_;  // begin and end of each pair, then the resets of both halves
    std::uint32_t slot_ = kSlots - 1;
    bool must_reset_ = true;
};

}  // namespace vkrnn::vk
