// The properties of a device that planning uses. Devices fill it in.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace vkrnn {

// What runs a device's plans. Each back end has its own strategies.
enum class Backend : std::uint8_t {
    vulkan,  // shaders on a Vulkan device
    cuda,    // the same shaders, compiled for CUDA
    native,  // the CPU's own kernels
};

enum class DeviceType : std::uint8_t { other, integrated_gpu, discrete_gpu, virtual_gpu, cpu };

struct Profile {
    Backend backend = Backend::vulkan;
    std::string name;            // "llvmpipe (LLVM 15.0.6, 256 bits)"
    std::string driver;          // "llvmpipe", "NVIDIA", "radv": VkDriverId's short name; "native" for the CPU itself
    std::string driver_version;  // as the driver reports it: "Mesa 22.3.6 (LLVM 15.0.6)"
    std::string api_version;     // "1.3.230"; for CUDA the compute capability: "9.0"
    DeviceType type = DeviceType::other;
    std::uint32_t vendor_id = 0, device_id = 0;
    std::array<std::uint8_t, 16> uuid{};  // the same for a GPU's Vulkan and CUDA devices; zeros for the CPU itself
    std::uint32_t subgroup_size = 1;
    std::uint32_t max_workgroup_invocations = 128;
    std::uint32_t max_workgroup_size_x = 128;
    std::uint32_t max_group_count = 65535;       // the smaller of x and y
    std::uint32_t max_shared_memory = 16384;     // bytes that a kernel declares
    std::uint32_t max_launch_shared_memory = 0;  // bytes, if a launch may give a kernel its size; 0: it may not
    std::uint32_t max_push_constants = 128;      // bytes
    std::uint64_t memory_bytes = 0;              // of the largest device-local heap
    std::uint64_t max_allocation = 0;            // bytes of one allocation
    bool unified_memory = false;                 // the host can map device-local memory
    bool float64 = false;                        // feature shaderFloat64
    bool storage_16bit = false;                  // feature storageBuffer16BitAccess; false for the CPU itself
    std::uint32_t compute_units = 0;             // multiprocessors or their equivalent; 0: unknown
    std::uint32_t registers = 0;                 // 32-bit registers of a compute unit; 0: unknown
    std::uint32_t matrix_side = 0;  // rows of a subgroup's square matrices: half precision, float32 sums; 0: not usable
    bool product_library = false;   // cuBLASLt was found; known once a device is opened
    std::uint32_t max_loop_iterations = 0;  // in total, after which a shader's loops silently end; 0: no limit
    bool operator==(const Profile&) const = default;
};

// A Vulkan device that is not listed, with the reason: "no shaderInt64".
struct SkippedDevice {
    std::string name;
    DeviceType type = DeviceType::other;
    std::string reason;
};

}  // namespace vkrnn
