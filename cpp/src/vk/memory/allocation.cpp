#include "vk/memory/allocation.h"

#include <atomic>
#include <bit>

#include "vk/device/physical_device.h"

namespace vkrnn::vk {
namespace {

constexpr BufferUsageFlags kInputUsage = BufferUsageFlagBits::eStorageBuffer | BufferUsageFlagBits::eUniformBuffer |
                                         BufferUsageFlagBits::eTransferSrc | BufferUsageFlagBits::eShaderDeviceAddress;
constexpr BufferUsageFlags kDeviceUsage = kInputUsage | BufferUsageFlagBits::eTransferDst;
constexpr MemoryPropertyFlags kCoherent = MemoryPropertyFlagBits::eHostVisible | MemoryPropertyFlagBits::eHostCoherent;

BufferUsageFlags usage_of(Use use) {
    switch (use) {
        case Use::device: return kDeviceUsage;
        case Use::upload: return BufferUsageFlagBits::eTransferSrc;
        case Use::download: return BufferUsageFlagBits::eTransferDst;
        case Use::reports: return kInputUsage;
    }
    return {};
}

// Returns one of the `possible` memory types. Vulkan guarantees that a buffer can have a device-local type, and a
// host-visible, coherent one.
std::uint32_t type_of(const LogicalDevice& device, Use use, std::uint32_t possible) {
    const auto memory = device.physical().getMemoryProperties();
    if (use == Use::device) {
        const MemoryPropertyFlags wanted =
            device.unified_memory() ? kUnifiedMemory : MemoryPropertyFlagBits::eDeviceLocal;
        return memory_type(memory, wanted, possible).value();
    }
    // Prefers cached memory, because the host reads uncached memory very slowly.
    const auto cached = memory_type(memory, kCoherent | MemoryPropertyFlagBits::eHostCached, possible);
    return use != Use::upload && cached ? *cached : memory_type(memory, kCoherent, possible).value();
}

std::uint64_t address_of(const LogicalDevice& device, const raii::Buffer& buffer) {
    return device.handle().getBufferAddress(BufferDeviceAddressInfo{.buffer = *buffer});
}

}  // namespace

bool is_aligned(const void* data, std::uint64_t alignment) {
    // Not a bit_cast, on which the analyzer of clang-tidy 14 crashes.
    return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

Allocation allocate(const LogicalDevice& device, Use use, std::uint64_t bytes) {
    static constinit std::atomic<std::uint64_t> last_number = 0;
    const bool addressed = use == Use::device || use == Use::reports;
    Allocation made;
    const auto& families = device.families();
    made.buffer = raii::Buffer(
        device.handle(),
        BufferCreateInfo{.size = bytes,
                         .usage = usage_of(use),
                         .sharingMode = families.size() > 1 ? SharingMode::eConcurrent : SharingMode::eExclusive,
                         .queueFamilyIndexCount = static_cast<std::uint32_t>(families.size()),
                         .pQueueFamilyIndices = families.data()});
    const MemoryRequirements needs = made.buffer.getMemoryRequirements();
    const MemoryAllocateFlagsInfo flags{.flags = MemoryAllocateFlagBits::eDeviceAddress};
    made.memory = raii::DeviceMemory(device.handle(),
                                     MemoryAllocateInfo{.pNext = addressed ? &flags : nullptr,
                                                        .allocationSize = needs.size,
                                                        .memoryTypeIndex = type_of(device, use, needs.memoryTypeBits)});
    made.buffer.bindMemory(*made.memory, 0);
    made.whole = {.buffer = *made.buffer, .bytes = bytes, .allocation = ++last_number};
    if (addressed) {
        made.whole.address = address_of(device, made.buffer);
    }
    if (use != Use::device || device.unified_memory()) {
        made.whole.host = static_cast<std::byte*>(made.memory.mapMemory(0, VK_WHOLE_SIZE));
    }
    return made;
}

Allocation import_host(const LogicalDevice& device, const void* data, std::uint64_t bytes) {
    constexpr auto kHandle = ExternalMemoryHandleTypeFlagBits::eHostAllocationEXT;
    const std::uint64_t granularity = device.host_import_alignment();
    const auto at = std::bit_cast<std::uintptr_t>(data);
    const std::uint64_t before = at % granularity;
    const std::uint64_t size = align(before + bytes, granularity);
    auto* const start = std::bit_cast<void*>(at - before);

    Allocation made;
    const ExternalMemoryBufferCreateInfo external{.handleTypes = kHandle};
    made.buffer =
        raii::Buffer(device.handle(), BufferCreateInfo{.pNext = &external, .size = size, .usage = kInputUsage});
    const auto possible = device.handle().getMemoryHostPointerPropertiesEXT(kHandle, start).memoryTypeBits &
                          made.buffer.getMemoryRequirements().memoryTypeBits;
    if (possible == 0) {
        throw ::vk::InvalidExternalHandleError("no memory type for memory of the host");
    }
    const ImportMemoryHostPointerInfoEXT import{.handleType = kHandle, .pHostPointer = start};
    const MemoryAllocateFlagsInfo flags{.pNext = &import, .flags = MemoryAllocateFlagBits::eDeviceAddress};
    made.memory = raii::DeviceMemory(
        device.handle(), MemoryAllocateInfo{.pNext = &flags,
                                            .allocationSize = size,
                                            .memoryTypeIndex = static_cast<std::uint32_t>(std::countr_zero(possible))});
    made.buffer.bindMemory(*made.memory, 0);
    made.whole = Slice{.buffer = *made.buffer,
                       .bytes = size,
                       .address = address_of(device, made.buffer),
                       .host = static_cast<std::byte*>(start)}
                     .part(before, bytes);
    return made;
}

}  // namespace vkrnn::vk
