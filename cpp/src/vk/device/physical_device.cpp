#include "vk/device/physical_device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace vkrnn::vk {
namespace {

std::string version_text(std::uint32_t version) {
    return std::to_string(VK_API_VERSION_MAJOR(version)) + '.' + std::to_string(VK_API_VERSION_MINOR(version)) + '.' +
           std::to_string(VK_API_VERSION_PATCH(version));
}

std::string driver_name(const PhysicalDeviceVulkan12Properties& properties) {
    switch (properties.driverID) {
        case DriverId::eMesaLlvmpipe: return "llvmpipe";
        case DriverId::eNvidiaProprietary: return "NVIDIA";
        case DriverId::eMesaNvk: return "nvk";
        case DriverId::eMesaRadv: return "radv";
        case DriverId::eAmdOpenSource: return "amdvlk";
        case DriverId::eAmdProprietary: return "AMD";
        case DriverId::eIntelOpenSourceMESA: return "anv";
        case DriverId::eIntelProprietaryWindows: return "Intel";
        case DriverId::eMesaTurnip: return "turnip";
        case DriverId::eMesaV3Dv: return "v3dv";
        case DriverId::eMesaPanvk: return "panvk";
        case DriverId::eMesaVenus: return "venus";
        case DriverId::eMesaDozen: return "dozen";
        case DriverId::eMoltenvk: return "MoltenVK";
        case DriverId::eGoogleSwiftshader: return "SwiftShader";
        default: return properties.driverName.data();
    }
}

// llvmpipe before Mesa 23 silently ends a shader's loops after this many iterations.
std::uint32_t loop_limit(const std::string& driver, const std::string& version) {
    int major = 0;
    const bool old = driver == "llvmpipe" && std::sscanf(version.c_str(), "Mesa %d.", &major) == 1 && major < 23;
    return old ? 65535 : 0;
}

std::uint32_t compute_units(const raii::PhysicalDevice& physical) {
    if (has_extension(physical, VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME)) {
        return physical.getProperties2<PhysicalDeviceProperties2, PhysicalDeviceShaderSMBuiltinsPropertiesNV>()
            .get<PhysicalDeviceShaderSMBuiltinsPropertiesNV>()
            .shaderSMCount;
    }
    if (has_extension(physical, VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME)) {
        const auto cores = physical.getProperties2<PhysicalDeviceProperties2, PhysicalDeviceShaderCorePropertiesAMD>()
                               .get<PhysicalDeviceShaderCorePropertiesAMD>();
        return cores.shaderEngineCount * cores.shaderArraysPerEngineCount * cores.computeUnitsPerShaderArray;
    }
    return 0;
}

constexpr std::uint32_t kNvidiaRegisters = 65536;  // registers of a multiprocessor

// Returns whether the kernels can use the cooperative matrices of a driver. They rely on each element of a matrix
// belonging to one invocation of the subgroup. Other drivers store elements more than once, or were not tried.
[[maybe_unused]] bool has_known_matrices(DriverId driver) {
    return driver == DriverId::eNvidiaProprietary || driver == DriverId::eMesaLlvmpipe;
}

// Returns the side of the largest square float16 matrices that a subgroup multiplies with float32 sums. Returns 0 if
// the kernels can use none, or if the package was built without such kernels.
std::uint32_t matrix_side([[maybe_unused]] const raii::PhysicalDevice& physical, [[maybe_unused]] DriverId driver) {
    std::uint32_t side = 0;
#ifdef VKRNN_MATRICES
    if (!has_known_matrices(driver) || !has_extension(physical, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME)) {
        return 0;
    }
    const auto features =
        physical.getFeatures2<PhysicalDeviceFeatures2, PhysicalDeviceVulkan11Features, PhysicalDeviceVulkan12Features,
                              PhysicalDeviceCooperativeMatrixFeaturesKHR>();
    if (!features.get<PhysicalDeviceCooperativeMatrixFeaturesKHR>().cooperativeMatrix ||
        !features.get<PhysicalDeviceVulkan12Features>().shaderFloat16 ||
        !features.get<PhysicalDeviceVulkan12Features>().vulkanMemoryModel ||
        !features.get<PhysicalDeviceVulkan11Features>().storageBuffer16BitAccess) {
        return 0;
    }
    for (const CooperativeMatrixPropertiesKHR& shape : physical.getCooperativeMatrixPropertiesKHR()) {
        const bool square = shape.MSize == shape.NSize && shape.NSize == shape.KSize;
        const bool half = shape.AType == ComponentTypeKHR::eFloat16 && shape.BType == ComponentTypeKHR::eFloat16;
        const bool sums = shape.CType == ComponentTypeKHR::eFloat32 && shape.ResultType == ComponentTypeKHR::eFloat32;
        if (square && half && sums && shape.scope == ScopeKHR::eSubgroup && !shape.saturatingAccumulation) {
            side = std::max(side, shape.MSize);
        }
    }
#endif
    return side;
}

}  // namespace

bool has_extension(const raii::PhysicalDevice& physical, const char* wanted) {
    const auto extensions = physical.enumerateDeviceExtensionProperties();
    return std::any_of(extensions.begin(), extensions.end(), [&](const ExtensionProperties& extension) {
        return std::strcmp(extension.extensionName.data(), wanted) == 0;
    });
}

bool can_fix_subgroup_size(const raii::PhysicalDevice& physical, std::uint32_t size) {
    const auto properties = physical.getProperties2<PhysicalDeviceProperties2, PhysicalDeviceVulkan13Properties>()
                                .get<PhysicalDeviceVulkan13Properties>();
    return (properties.requiredSubgroupSizeStages & ShaderStageFlagBits::eCompute) &&
           properties.minSubgroupSize <= size && size <= properties.maxSubgroupSize;
}

std::optional<std::uint32_t> compute_family(const raii::PhysicalDevice& physical) {
    const auto families = physical.getQueueFamilyProperties();
    std::optional<std::uint32_t> first;
    for (std::uint32_t family = 0; family < families.size(); ++family) {
        const QueueFlags flags = families[family].queueFlags;
        if (!(flags & QueueFlagBits::eCompute)) {
            continue;
        }
        if (!(flags & QueueFlagBits::eGraphics) && families[family].timestampValidBits != 0) {
            return family;
        }
        first = first.value_or(family);
    }
    return first;
}

std::optional<std::uint32_t> transfer_family(const raii::PhysicalDevice& physical) {
    constexpr QueueFlags kAllowed =
        QueueFlagBits::eTransfer | QueueFlagBits::eSparseBinding | QueueFlagBits::eProtected;
    const auto families = physical.getQueueFamilyProperties();
    for (std::uint32_t family = 0; family < families.size(); ++family) {
        const QueueFlags flags = families[family].queueFlags;
        if ((flags & QueueFlagBits::eTransfer) && !(flags & ~kAllowed)) {
            return family;
        }
    }
    return std::nullopt;
}

std::optional<std::uint32_t> memory_type(const PhysicalDeviceMemoryProperties& memory, MemoryPropertyFlags wanted,
                                         std::uint32_t possible) {
    // Skips AMD's uncached memory types. They are for debugging: slow, and refused unless a feature is enabled.
    const MemoryPropertyFlags unwanted = MemoryPropertyFlagBits::eDeviceCoherentAMD |
                                         MemoryPropertyFlagBits::eDeviceUncachedAMD |
                                         MemoryPropertyFlagBits::eProtected;
    for (std::uint32_t type = 0; type < memory.memoryTypeCount; ++type) {
        const MemoryPropertyFlags flags = memory.memoryTypes[type].propertyFlags;
        if ((possible >> type & 1U) != 0 && (flags & wanted) == wanted && !(flags & unwanted)) {
            return type;
        }
    }
    return std::nullopt;
}

bool has_unified_memory(DeviceType type, const PhysicalDeviceMemoryProperties& memory) {
    const bool shares_memory = type == DeviceType::cpu || type == DeviceType::integrated_gpu;
    return shares_memory && memory_type(memory, kUnifiedMemory).has_value();
}

DeviceType device_type(PhysicalDeviceType type) {
    switch (type) {
        case PhysicalDeviceType::eIntegratedGpu: return DeviceType::integrated_gpu;
        case PhysicalDeviceType::eDiscreteGpu: return DeviceType::discrete_gpu;
        case PhysicalDeviceType::eVirtualGpu: return DeviceType::virtual_gpu;
        case PhysicalDeviceType::eCpu: return DeviceType::cpu;
        default: return DeviceType::other;
    }
}

std::optional<std::string> unusable(const raii::PhysicalDevice& physical) {
    const std::uint32_t version = physical.getProperties().apiVersion;
    if (version < VK_API_VERSION_1_3) {
        return "Vulkan " + version_text(version) + ", 1.3 is needed";
    }
    const auto features = physical.getFeatures2<PhysicalDeviceFeatures2, PhysicalDeviceVulkan12Features>();
    if (!features.get<PhysicalDeviceVulkan12Features>().bufferDeviceAddress) {
        return "no bufferDeviceAddress";
    }
    if (!features.get<PhysicalDeviceFeatures2>().features.shaderInt64) {
        return "no shaderInt64";
    }
    if (!has_extension(physical, VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME)) {
        return "no VK_KHR_push_descriptor";
    }
    const auto subgroups = physical.getProperties2<PhysicalDeviceProperties2, PhysicalDeviceVulkan11Properties>()
                               .get<PhysicalDeviceVulkan11Properties>();
    // The kernels use these subgroup operations: see product.glsl and gemm_register.comp.
    const SubgroupFeatureFlags operations =
        SubgroupFeatureFlagBits::eBasic | SubgroupFeatureFlagBits::eBallot | SubgroupFeatureFlagBits::eShuffle;
    if (!(subgroups.subgroupSupportedStages & ShaderStageFlagBits::eCompute) ||
        (subgroups.subgroupSupportedOperations & operations) != operations) {
        return "no subgroup ballot and shuffle in compute shaders";
    }
    if (!compute_family(physical)) {
        return "no compute queue";
    }
    return std::nullopt;
}

Profile read_profile(const raii::PhysicalDevice& physical) {
    const auto chain = physical.getProperties2<PhysicalDeviceProperties2, PhysicalDeviceVulkan11Properties,
                                               PhysicalDeviceVulkan12Properties, PhysicalDeviceVulkan13Properties>();
    const PhysicalDeviceProperties& core = chain.get<PhysicalDeviceProperties2>().properties;
    const auto& properties11 = chain.get<PhysicalDeviceVulkan11Properties>();
    const auto& properties12 = chain.get<PhysicalDeviceVulkan12Properties>();
    const PhysicalDeviceMemoryProperties memory = physical.getMemoryProperties();

    Profile profile;
    profile.name = core.deviceName.data();
    profile.driver = driver_name(properties12);
    profile.driver_version = properties12.driverInfo.data();
    if (profile.driver_version.empty()) {
        profile.driver_version = std::to_string(core.driverVersion);
    }
    profile.api_version = version_text(core.apiVersion);
    profile.type = device_type(core.deviceType);
    profile.vendor_id = core.vendorID;
    profile.device_id = core.deviceID;
    std::ranges::copy(properties11.deviceUUID, profile.uuid.begin());
    profile.subgroup_size = properties11.subgroupSize;
    // Pipelines require a subgroup size, and a workgroup has at most this many subgroups.
    const std::uint32_t subgroups = chain.get<PhysicalDeviceVulkan13Properties>().maxComputeWorkgroupSubgroups;
    profile.max_workgroup_invocations =
        std::min(core.limits.maxComputeWorkGroupInvocations, profile.subgroup_size * std::max(1u, subgroups));
    profile.max_workgroup_size_x = core.limits.maxComputeWorkGroupSize[0];
    profile.max_group_count =
        std::min(core.limits.maxComputeWorkGroupCount[0], core.limits.maxComputeWorkGroupCount[1]);
    profile.max_shared_memory = core.limits.maxComputeSharedMemorySize;
    profile.max_push_constants = core.limits.maxPushConstantsSize;
    for (std::uint32_t heap = 0; heap < memory.memoryHeapCount; ++heap) {
        if (memory.memoryHeaps[heap].flags & MemoryHeapFlagBits::eDeviceLocal) {
            profile.memory_bytes = std::max<std::uint64_t>(profile.memory_bytes, memory.memoryHeaps[heap].size);
        }
    }
    profile.max_allocation = std::min<std::uint64_t>(properties11.maxMemoryAllocationSize,
                                                     chain.get<PhysicalDeviceVulkan13Properties>().maxBufferSize);
    profile.unified_memory = has_unified_memory(profile.type, memory);
    profile.float64 = physical.getFeatures().shaderFloat64;
    profile.storage_16bit = physical.getFeatures2<PhysicalDeviceFeatures2, PhysicalDeviceVulkan11Features>()
                                .get<PhysicalDeviceVulkan11Features>()
                                .storageBuffer16BitAccess;
    profile.compute_units = compute_units(physical);
    profile.registers = properties12.driverID == DriverId::eNvidiaProprietary ? kNvidiaRegisters : 0;
    profile.matrix_side = matrix_side(physical, properties12.driverID);
    profile.max_loop_iterations = loop_limit(profile.driver, profile.driver_version);
    return profile;
}

}  // namespace vkrnn::vk
