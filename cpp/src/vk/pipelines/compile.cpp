#include "vk/pipelines/compile.h"

#include <stdexcept>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn::vk {

KernelLayout make_layout(const raii::Device& device) {
    const PushConstantRange range{.stageFlags = ShaderStageFlagBits::eCompute, .offset = 0, .size = kPushBytes};
    const DescriptorSetLayoutBinding binding{.binding = 0,
                                             .descriptorType = DescriptorType::eUniformBuffer,
                                             .descriptorCount = 1,
                                             .stageFlags = ShaderStageFlagBits::eCompute};
    KernelLayout made;
    made.set = {device, DescriptorSetLayoutCreateInfo{.flags = DescriptorSetLayoutCreateFlagBits::ePushDescriptorKHR,
                                                      .bindingCount = 1,
                                                      .pBindings = &binding}};
    made.pipeline = {device, PipelineLayoutCreateInfo{.setLayoutCount = 1,
                                                      .pSetLayouts = &*made.set,
                                                      .pushConstantRangeCount = 1,
                                                      .pPushConstantRanges = &range}};
    return made;
}

raii::Pipeline compile_kernel(const raii::Device& device, const Kernel& kernel, PipelineLayout layout,
                              const raii::PipelineCache& cache, std::uint32_t subgroup_size,
                              PipelineCreateFlags flags) {
    const auto code = shader_code(kernel.shader);
    if (code.empty()) {
        throw std::invalid_argument("there is no shader named '" + kernel.shader + "'");
    }
    const raii::ShaderModule module(device,
                                    ShaderModuleCreateInfo{.codeSize = code.size_bytes(), .pCode = code.data()});
    std::vector<SpecializationMapEntry> entries;
    for (std::uint32_t id = 0; id < kernel.constants.size(); ++id) {
        entries.push_back({.constantID = id, .offset = id * 4, .size = 4});
    }
    const SpecializationInfo specialization{.mapEntryCount = static_cast<std::uint32_t>(entries.size()),
                                            .pMapEntries = entries.data(),
                                            .dataSize = kernel.constants.size() * 4,
                                            .pData = kernel.constants.data()};
    const PipelineShaderStageRequiredSubgroupSizeCreateInfo size{.requiredSubgroupSize = subgroup_size};
    const ComputePipelineCreateInfo info{.flags = flags,
                                         .stage = {.pNext = subgroup_size != 0 ? &size : nullptr,
                                                   .stage = ShaderStageFlagBits::eCompute,
                                                   .module = *module,
                                                   .pName = "main",
                                                   .pSpecializationInfo = &specialization},
                                         .layout = layout};
    return {device, cache, info};
}

}  // namespace vkrnn::vk
