// A logical device with its queues, and what the files beside this one need to know of it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "vk/device/context.h"
#include "vk/device/vulkan.h"
#include "vkrnn/profile.h"

namespace vkrnn::vk {

class LogicalDevice {
public:
    // Throws vk::SystemError.
    explicit LogicalDevice(Seat seat);

    [[nodiscard]] const Context& context() const { return *context_; }
    [[nodiscard]] const Profile& profile() const { return profile_; }
    [[nodiscard]] const raii::PhysicalDevice& physical() const { return physical_; }
    [[nodiscard]] const raii::Device& handle() const { return handle_; }

    struct Lane {
        std::uint32_t family = 0;
        raii::Queue queue = nullptr;
    };
    // Where calls are submitted, and where uploads of arrays are: a queue of their own if the device has one that does
    // nothing else, so that they go on while it computes and downloads.
    [[nodiscard]] const Lane& calls() const { return lanes_.front(); }
    [[nodiscard]] const Lane& uploads() const { return lanes_.back(); }
    // What a buffer is shared between.
    [[nodiscard]] const std::vector<std::uint32_t>& families() const { return families_; }

    // Nanoseconds of one tick of a timestamp; 0 where the queue has none.
    [[nodiscard]] double timestamp_period() const { return timestamp_period_; }

    // Whether a pipeline can be told to use subgroups of the profile's size.
    [[nodiscard]] bool fixes_subgroup_size() const { return fixes_subgroup_size_; }

    // Whether the host works on the device's own memory. VKRNN_STAGING=1 says no where it could: so that the way
    // discrete devices take can be tested on any.
    [[nodiscard]] bool unified_memory() const { return unified_memory_; }

    // What addresses of the host's memory must be a multiple of to be imported; 0 where the device imports none.
    [[nodiscard]] std::uint64_t host_import_alignment() const { return host_import_alignment_; }

    // Bytes the device can still give: its budget where the driver tells, else its memory, and on a CPU no more
    // than the host has. `held` is what the caller has of it already.
    [[nodiscard]] std::uint64_t free_memory(std::uint64_t held) const;

private:
    std::shared_ptr<const Context> context_;
    Profile profile_;
    raii::PhysicalDevice physical_;
    bool unified_memory_;
    std::vector<std::uint32_t> families_;
    bool memory_budget_;
    double timestamp_period_;
    bool fixes_subgroup_size_;
    std::uint64_t host_import_alignment_;
    raii::Device handle_;
    std::vector<Lane> lanes_;  // one or two
};

}  // namespace vkrnn::vk
