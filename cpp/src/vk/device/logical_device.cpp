#include "vk/device/logical_device.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/host_memory.h"
#include "vk/device/physical_device.h"
#include "vk/device/switches.h"

namespace vkrnn::vk {
namespace {

double tick_nanoseconds(const raii::PhysicalDevice& physical, std::uint32_t family) {
    const bool has = physical.getQueueFamilyProperties()[family].timestampValidBits != 0;
    return has ? static_cast<double>(physical.getProperties().limits.timestampPeriod) : 0.0;
}

// Discrete devices import nothing: copying to them is faster than letting them read host memory.
std::uint64_t import_alignment(const raii::PhysicalDevice& physical, bool unified) {
    if (!unified || !has_extension(physical, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME)) {
        return 0;
    }
    return physical.getProperties2<PhysicalDeviceProperties2, PhysicalDeviceExternalMemoryHostPropertiesEXT>()
        .get<PhysicalDeviceExternalMemoryHostPropertiesEXT>()
        .minImportedHostPointerAlignment;
}

// Returns the queue family for calls, followed by the one for uploads if it differs.
std::vector<std::uint32_t> families_of(const raii::PhysicalDevice& physical, bool unified) {
    std::vector<std::uint32_t> families{compute_family(physical).value()};
    if (const auto transfers = transfer_family(physical); transfers && !unified) {
        families.push_back(*transfers);
    }
    return families;
}

raii::Device create(const raii::PhysicalDevice& physical, const std::vector<std::uint32_t>& families,
                    const std::vector<const char*>& extensions, [[maybe_unused]] bool matrix_units) {
    const auto there = physical.getFeatures2<PhysicalDeviceFeatures2, PhysicalDeviceVulkan11Features,
                                             PhysicalDeviceVulkan12Features, PhysicalDeviceVulkan13Features>();
    const PhysicalDeviceFeatures& core = there.get<PhysicalDeviceFeatures2>().features;
    const auto& there11 = there.get<PhysicalDeviceVulkan11Features>();
    const auto& there12 = there.get<PhysicalDeviceVulkan12Features>();

    // All other features stay off, such as robustBufferAccess.
    PhysicalDeviceVulkan13Features features13{
        .subgroupSizeControl = true, .computeFullSubgroups = true, .synchronization2 = true, .maintenance4 = true};
    PhysicalDeviceVulkan12Features features12{.pNext = &features13,
                                              .shaderFloat16 = there12.shaderFloat16,
                                              .scalarBlockLayout = there12.scalarBlockLayout,
                                              .uniformBufferStandardLayout = true,  // Vulkan 1.2 has it
                                              .timelineSemaphore = true,
                                              .bufferDeviceAddress = true,
                                              .vulkanMemoryModel = there12.vulkanMemoryModel,
                                              .vulkanMemoryModelDeviceScope = there12.vulkanMemoryModelDeviceScope};
    PhysicalDeviceVulkan11Features features11{.pNext = &features12,
                                              .storageBuffer16BitAccess = there11.storageBuffer16BitAccess};
    void* chain = &features11;
#ifdef VKRNN_MATRICES
    PhysicalDeviceCooperativeMatrixFeaturesKHR matrices{.pNext = chain, .cooperativeMatrix = true};
    if (matrix_units) {
        chain = &matrices;
    }
#endif
    const PhysicalDeviceFeatures2 features{
        .pNext = chain,
        .features = {.shaderFloat64 = core.shaderFloat64, .shaderInt64 = true, .shaderInt16 = core.shaderInt16}};

    const float priority = 1.0f;
    std::vector<DeviceQueueCreateInfo> queues;
    queues.reserve(families.size());
    for (const std::uint32_t family : families) {
        queues.push_back({.queueFamilyIndex = family, .queueCount = 1, .pQueuePriorities = &priority});
    }
    return {physical, DeviceCreateInfo{.pNext = &features,
                                       .queueCreateInfoCount = static_cast<std::uint32_t>(queues.size()),
                                       .pQueueCreateInfos = queues.data(),
                                       .enabledExtensionCount = static_cast<std::uint32_t>(extensions.size()),
                                       .ppEnabledExtensionNames = extensions.data()}};
}

// Devices with this extension implement a subset of Vulkan, and must enable it. The parts that they may lack are
// graphics and events, which vkrnn does not use, so no feature of the subset is requested. Vulkan's headers define the
// name only among provisional extensions.
constexpr const char* kPortabilitySubset = "VK_KHR_portability_subset";

std::vector<const char*> extensions(bool portability_subset, bool memory_budget, bool host_import,
                                    [[maybe_unused]] bool matrix_units) {
    std::vector<const char*> names{VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME};
    if (portability_subset) {
        names.push_back(kPortabilitySubset);
    }
    if (memory_budget) {
        names.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    }
    if (host_import) {
        names.push_back(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
    }
#ifdef VKRNN_MATRICES
    if (matrix_units) {
        names.push_back(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
    }
#endif
    return names;
}

}  // namespace

LogicalDevice::LogicalDevice(SelectedDevice selected)
    : context_(std::move(selected.context)),
      profile_(std::move(selected.candidate.profile)),
      physical_(std::move(selected.candidate.physical)),
      unified_memory_(profile_.unified_memory && !is_on("VKRNN_STAGING")),
      families_(families_of(physical_, unified_memory_)),
      memory_budget_(has_extension(physical_, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME)),
      timestamp_period_(tick_nanoseconds(physical_, families_.front())),
      fixes_subgroup_size_(can_fix_subgroup_size(physical_, profile_.subgroup_size)),
      host_import_alignment_(import_alignment(physical_, unified_memory_)),
      handle_(create(physical_, families_,
                     extensions(has_extension(physical_, kPortabilitySubset), memory_budget_,
                                host_import_alignment_ != 0, profile_.matrix_side != 0),
                     profile_.matrix_side != 0)) {
    queues_.reserve(families_.size());
    for (const std::uint32_t family : families_) {
        queues_.push_back({family, raii::Queue(handle_, family, 0)});
    }
}

LogicalDevice::~LogicalDevice() {
    const std::lock_guard lock(loader_mutex());
    queues_.clear();
    handle_ = nullptr;
}

std::uint64_t LogicalDevice::free_memory(std::uint64_t held) const {
    std::uint64_t free = 0;
    if (memory_budget_) {
        const auto chain =
            physical_.getMemoryProperties2<PhysicalDeviceMemoryProperties2, PhysicalDeviceMemoryBudgetPropertiesEXT>();
        const auto& memory = chain.get<PhysicalDeviceMemoryProperties2>().memoryProperties;
        const auto& budget = chain.get<PhysicalDeviceMemoryBudgetPropertiesEXT>();
        std::uint64_t largest = 0;
        for (std::uint32_t heap = 0; heap < memory.memoryHeapCount; ++heap) {
            if ((memory.memoryHeaps[heap].flags & MemoryHeapFlagBits::eDeviceLocal) &&
                memory.memoryHeaps[heap].size > largest) {
                largest = memory.memoryHeaps[heap].size;
                free = budget.heapBudget[heap] - std::min(budget.heapBudget[heap], budget.heapUsage[heap]);
            }
        }
        if (profile_.type != DeviceType::cpu) {
            return free;
        }
    }
    if (profile_.type == DeviceType::cpu) {
        // The size of this heap is nominal: 2 GiB in old releases, whatever the machine has. The host's free memory is
        // real.
        const std::uint64_t host = host_memory_available();
        return memory_budget_ ? std::min(free, host) : host;
    }
    return profile_.memory_bytes - std::min(profile_.memory_bytes, held);
}

}  // namespace vkrnn::vk
