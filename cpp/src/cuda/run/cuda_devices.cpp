#include "cuda/run/cuda_devices.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/reports.h"
#include "cuda/libraries/cublas.h"
#include "cuda/libraries/driver.h"
#include "cuda/libraries/nvrtc.h"
#include "cuda/run/cuda_device.h"
#include "vkrnn/error.h"

namespace vkrnn::cuda {
namespace {

constexpr std::uint32_t kNvidia = 0x10de;  // PCI vendor ID
constexpr int kLeastMajor = 8;             // compute capability: the kernels use instructions of 8.0
constexpr std::uint32_t kMatrixSide = 16;  // of the matrices in shaders/cuda/glsl.cuh
constexpr std::uint32_t kParameterBytes = 256;
constexpr std::uint32_t kMostGroups = 65535;  // along y

std::uint32_t size(DeviceNumber device, DeviceAttribute wanted) {
    return static_cast<std::uint32_t>(attribute_of(device, wanted));
}

Profile read_profile(int ordinal) {
    const Functions& cu = driver();
    DeviceNumber device = 0;
    check(cu.DeviceGet(&device, ordinal));
    char name[256] = {};
    check(cu.DeviceGetName(name, sizeof name, device));
    Uuid uuid{};
    check(cu.DeviceGetUuid(&uuid, device));
    std::size_t bytes = 0;
    check(cu.DeviceTotalMem(&bytes, device));
    Profile profile;
    profile.backend = Backend::cuda;
    profile.name = "cuda:" + std::to_string(ordinal) + " (" + name + ")";
    profile.driver = "CUDA";
    profile.driver_version = "CUDA " + version_text(driver_version());
    profile.api_version = std::to_string(attribute_of(device, DeviceAttribute::major)) + "." +
                          std::to_string(attribute_of(device, DeviceAttribute::minor));
    profile.type = DeviceType::discrete_gpu;
    profile.vendor_id = kNvidia;
    std::ranges::copy(uuid.bytes, profile.uuid.begin());
    profile.subgroup_size = size(device, DeviceAttribute::warp_size);
    profile.max_workgroup_invocations = size(device, DeviceAttribute::max_threads_per_block);
    profile.max_workgroup_size_x = size(device, DeviceAttribute::max_block_x);
    profile.max_group_count = kMostGroups;
    profile.max_shared_memory = size(device, DeviceAttribute::max_shared_memory);
    profile.max_launch_shared_memory = size(device, DeviceAttribute::max_launch_shared_memory);
    profile.max_push_constants = kParameterBytes;
    profile.memory_bytes = profile.max_allocation = bytes;
    profile.float64 = profile.storage_16bit = true;
    profile.compute_units = size(device, DeviceAttribute::multiprocessors);
    profile.registers = size(device, DeviceAttribute::registers);
    profile.matrix_side = kMatrixSide;
    return profile;
}

// Returns why a device cannot be used; empty if it can.
std::string unusable(int ordinal) {
    DeviceNumber device = 0;
    check(driver().DeviceGet(&device, ordinal));
    const int major = attribute_of(device, DeviceAttribute::major);
    if (major < kLeastMajor)
        return "compute capability " + std::to_string(major) + "." +
               std::to_string(attribute_of(device, DeviceAttribute::minor)) + ", 8.0 is needed";
    if (attribute_of(device, DeviceAttribute::memory_pools) == 0) return "the driver has no memory pools for it";
    return nvrtc_problem();
}

// Locked while the driver is opened and queried, so that no process is forked meanwhile: it would find locks of the
// driver locked for ever. It is `outer`, because the search for NVRTC locks another mutex.
ForkSafeMutex& mutex_of_the_driver =
    *new ForkSafeMutex(ForkSafeMutex::Kind::outer);  // NOLINT(cppcoreguidelines-owning-memory)

}  // namespace

Listed list() {
    const std::lock_guard lock(mutex_of_the_driver);
    Listed listed;
    try {
        int count = 0;
        check(driver().DeviceGetCount(&count));
        for (int ordinal = 0; ordinal < count; ++ordinal) {
            Profile profile = read_profile(ordinal);
            std::string reason = unusable(ordinal);
            if (reason.empty())
                listed.usable.emplace_back(ordinal, std::move(profile));
            else
                listed.skipped.push_back({profile.name, profile.type, std::move(reason)});
        }
    } catch (const DeviceError& error) {
        listed.problem = error.what();
    } catch (const DriverError& error) {
        listed.problem = "the CUDA driver cannot list its devices: " + error.text;
    }
    return listed;
}

std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed, const Tuning& tuning) {
    auto [ordinal, profile] = list().usable.at(index);
    // Not while devices are listed, because the library has hundreds of megabytes.
    const std::string problem = cublas::problem();
    profile.product_library = problem.empty();
    if (!problem.empty()) {
        if (fixed.gemm == "cublas") throw DeviceError("[Device] gemm 'cublas' cannot be used: " + problem);
        report(Severity::info, profile.name + " computes all products with its own kernels: " + problem);
    }
    return std::make_shared<CudaDevice>(ordinal, std::move(profile), fixed, tuning);
}

}  // namespace vkrnn::cuda
