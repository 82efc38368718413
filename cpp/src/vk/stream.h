// Command buffers on their way through the queue: one is recorded while another runs.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "device.h"
#include "vkrnn/device.h"
#include "vulkan.h"

namespace vkrnn::vk {

class Stream {
public:
    // Throws vk::SystemError.
    explicit Stream(const LogicalDevice& device);

    // Starts a call whose first command buffer is to hold up to about `capacity` dispatches.
    void start(const Poll& poll, double capacity);

    // The command buffer to record into, from begin() to submit().
    [[nodiscard]] const raii::CommandBuffer& commands() const { return slots_[current_].commands; }

    // Opens the next command buffer. No more than two are ever in flight: it waits for the last but one, if need be.
    // Throws Interrupted once the device is done with everything submitted; vk::SystemError.
    void begin();

    // Submits the command buffer being recorded. Throws vk::SystemError.
    void submit();

    // Waits for everything submitted. Throws like begin().
    void finish();

    // After an exception: waits until the device is done with everything submitted (or is lost). The stream can be
    // started again afterwards.
    void recover() noexcept;

    // How many dispatches the command buffer being recorded should hold: few at first, more while they are quick, so
    // that an interrupt acts soon whatever a dispatch costs, and long calls take few submissions.
    [[nodiscard]] std::uint32_t capacity() const { return capacity_; }

    [[nodiscard]] std::uint64_t submissions() const { return submissions_; }

    // Makes the next submit() throw vk::DeviceLostError after submitting.
    void lose_next() { lose_next_ = true; }

private:
    using Clock = std::chrono::steady_clock;
    struct Slot {
        raii::CommandPool pool = nullptr;
        raii::CommandBuffer commands = nullptr;
        raii::Fence fence = nullptr;
        bool in_flight = false;
        Clock::time_point submitted;
    };

    void wait(Slot& slot);
    void poll_now_and_then();
    void adapt(const Slot& slot);

    const LogicalDevice& device_;
    std::array<Slot, 2> slots_;  // used in turn
    std::size_t current_ = 0;
    const Poll* poll_ = nullptr;
    bool stop_ = false;
    bool lose_next_ = false;
    std::uint32_t capacity_ = 0;
    std::uint64_t submissions_ = 0;
    Clock::time_point polled_, completed_;
};

}  // namespace vkrnn::vk
