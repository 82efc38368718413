#include "memory.h"

#include "error.h"
#include "host_memory.h"
#include "profile.h"
#include "vkrnn/error.h"

namespace vkrnn::vk {
namespace {

constexpr BufferUsageFlags kDeviceUsage = BufferUsageFlagBits::eStorageBuffer | BufferUsageFlagBits::eTransferSrc |
                                          BufferUsageFlagBits::eTransferDst | BufferUsageFlagBits::eShaderDeviceAddress;
constexpr MemoryPropertyFlags kCoherent = MemoryPropertyFlagBits::eHostVisible | MemoryPropertyFlagBits::eHostCoherent;

Arena::Kind device_kind(const LogicalDevice& device, bool unified) {
    const auto memory = device.physical().getMemoryProperties();
    // Every Vulkan device has a device-local type and a coherent host-visible one.
    return {memory_type(memory, unified ? kUnifiedMemory : MemoryPropertyFlagBits::eDeviceLocal).value(), kDeviceUsage,
            unified};
}

Arena::Kind upload_kind(const LogicalDevice& device) {
    return {memory_type(device.physical().getMemoryProperties(), kCoherent).value(), BufferUsageFlagBits::eTransferSrc,
            true};
}

// Reading memory the host does not cache is very slow.
Arena::Kind download_kind(const LogicalDevice& device) {
    const auto memory = device.physical().getMemoryProperties();
    const auto cached = memory_type(memory, kCoherent | MemoryPropertyFlagBits::eHostCached);
    return {cached ? *cached : memory_type(memory, kCoherent).value(), BufferUsageFlagBits::eTransferDst, true};
}

}  // namespace

Memory::Memory(const LogicalDevice& device, bool unified)
    : device_(device),
      unified_(unified && device.profile().unified_memory),
      device_arena_(device, device_kind(device, unified_)),
      upload_arena_(device, upload_kind(device)),
      download_arena_(device, download_kind(device)) {}

std::uint64_t Memory::held() const { return device_arena_.held() + upload_arena_.held() + download_arena_.held(); }

void Memory::release() {
    device_arena_.release();
    upload_arena_.release();
    download_arena_.release();
}

void Memory::check_device(const Plan& plan, const std::string& prefix) const {
    const std::string& name = device_.profile().name;
    const std::uint64_t asked = packed_bytes(sizes_);
    const std::uint64_t held = device_arena_.held();  // makes way for the larger blocks
    const std::uint64_t free = device_.free_memory(held) + held;
    if (asked > free) {
        throw MemoryError(prefix + "the call needs " + bytes_text(asked) + " of device memory, " + bytes_text(free) +
                              " are free on " + name,
                          asked, free);
    }
    const std::uint64_t limit = device_.profile().max_allocation;
    for (const PlanBuffer& buffer : plan.buffers) {
        // The granularity of the arena is kept away from the limit.
        if (buffer.bytes > limit - 256) {
            throw MemoryError(prefix + buffer.name + " needs " + bytes_text(buffer.bytes) + " in one piece, " + name +
                                  " allocates at most " + bytes_text(limit) + " in one piece",
                              buffer.bytes, limit);
        }
    }
}

void Memory::check_staging(const std::string& prefix) const {
    const std::uint64_t asked = packed_bytes(upload_sizes_) + packed_bytes(download_sizes_);
    const std::uint64_t held = upload_arena_.held() + download_arena_.held();
    const std::uint64_t free = host_memory_available();
    if (asked > held && asked - held > free) {
        throw MemoryError(prefix + "the call needs " + bytes_text(asked) + " of host memory for transfers, " +
                              bytes_text(free + held) + " are free",
                          asked, free + held);
    }
}

void Memory::allocate(const std::string& prefix) {
    const auto place_all = [this] {
        device_arena_.place(sizes_, slices_);
        upload_arena_.place(upload_sizes_, uploads_);
        download_arena_.place(download_sizes_, downloads_);
    };
    try {
        try {
            place_all();
        } catch (const ::vk::OutOfDeviceMemoryError&) {
            release();
            place_all();
        } catch (const ::vk::OutOfHostMemoryError&) {
            release();
            place_all();
        }
    } catch (...) {
        release();
        rethrow_translated(prefix, packed_bytes(sizes_), device_.free_memory(0));
    }
}

std::span<const Placement> Memory::place(const Plan& plan, const std::string& prefix) {
    sizes_.clear();
    upload_sizes_.clear();
    download_sizes_.clear();
    for (const PlanBuffer& buffer : plan.buffers) {
        sizes_.push_back(buffer.bytes);
        if (unified_ || buffer.role == Role::scratch) {
            continue;
        }
        (buffer.role == Role::result ? download_sizes_ : upload_sizes_).push_back(buffer.bytes);
    }
    // Asking how much is free costs more than a small call: only a call that needs more memory does.
    if (!device_arena_.fits(sizes_)) {
        check_device(plan, prefix);
    }
    if (!upload_arena_.fits(upload_sizes_) || !download_arena_.fits(download_sizes_)) {
        check_staging(prefix);
    }
    allocate(prefix);

    placements_.assign(plan.buffers.size(), {});
    auto upload = uploads_.begin();
    auto download = downloads_.begin();
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
        Placement& placement = placements_[i];
        placement.device = slices_[i];
        if (unified_) {
            placement.host = placement.device.host;
        } else if (plan.buffers[i].role != Role::scratch) {
            placement.staging = plan.buffers[i].role == Role::result ? *download++ : *upload++;
            placement.host = placement.staging.host;
        }
    }
    return placements_;
}

}  // namespace vkrnn::vk
