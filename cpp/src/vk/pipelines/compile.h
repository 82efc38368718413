// Compiles kernels into pipelines.
#pragma once

#include <cstdint>

#include "vk/device/vulkan.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

constexpr std::uint32_t kPushBytes = 128;  // Vulkan guarantees this many bytes of push constants

// The layout of every pipeline: push constants, and a uniform buffer with the parameters of a time loop, which a
// command buffer records with the dispatch.
struct KernelLayout {
    raii::DescriptorSetLayout set = nullptr;
    raii::PipelineLayout pipeline = nullptr;
};

// Throws vk::SystemError.
KernelLayout make_layout(const raii::Device& device);

// Compiles a kernel of the package, with this subgroup size or, if it is 0, the driver's choice. The cache may be
// empty. Throws vk::SystemError, and std::invalid_argument if the package has no such shader.
raii::Pipeline compile_kernel(const raii::Device& device, const Kernel& kernel, PipelineLayout layout,
                              const raii::PipelineCache& cache, std::uint32_t subgroup_size,
                              PipelineCreateFlags flags = {});

}  // namespace vkrnn::vk
