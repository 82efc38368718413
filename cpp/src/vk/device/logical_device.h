// A logical device with its queues and properties.
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
    explicit LogicalDevice(SelectedDevice selected);
    // Locks the loader's mutex.
    ~LogicalDevice();
    LogicalDevice(const LogicalDevice&) = delete;
    LogicalDevice& operator=(const LogicalDevice&) = delete;

    [[nodiscard]] const Context& context() const { return *context_; }
    [[nodiscard]] const Profile& profile() const { return profile_; }
    [[nodiscard]] const raii::PhysicalDevice& physical() const { return physical_; }
    [[nodiscard]] const raii::Device& handle() const { return handle_; }

    struct DeviceQueue {
        std::uint32_t family = 0;
        raii::Queue queue = nullptr;
    };
    // The queue that computes, and the one for uploads of arrays. The latter is a transfer-only queue if the device has
    // one, so that uploads continue while the device computes and downloads; otherwise both are the same.
    [[nodiscard]] const DeviceQueue& compute_queue() const { return queues_.front(); }
    [[nodiscard]] const DeviceQueue& upload_queue() const { return queues_.back(); }
    // Returns the queue families that share buffers.
    [[nodiscard]] const std::vector<std::uint32_t>& families() const { return families_; }

    // Returns the nanoseconds per timestamp tick; 0 if the queue has no timestamps.
    [[nodiscard]] double timestamp_period() const { return timestamp_period_; }

    // Returns whether a pipeline can require the profile's subgroup size.
    [[nodiscard]] bool fixes_subgroup_size() const { return fixes_subgroup_size_; }

    // Returns whether the host reads and writes device memory in place. VKRNN_STAGING=1 makes it false, so that the
    // copies needed by discrete devices can be tested on any device.
    [[nodiscard]] bool unified_memory() const { return unified_memory_; }

    // Returns the alignment that imported host memory needs; 0 if the device imports none.
    [[nodiscard]] std::uint64_t host_import_alignment() const { return host_import_alignment_; }

    // Returns the bytes that can still be allocated: the driver's budget if it reports one, else the device's memory
    // minus the `held` bytes that the caller has already. On a CPU device, at most what the host has free.
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
    std::vector<DeviceQueue> queues_;  // one or two
};

}  // namespace vkrnn::vk
