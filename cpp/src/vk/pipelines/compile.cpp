#include "vk/pipelines/compile.h"

#include <stdexcept>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn::vk {

raii::PipelineLayout make_layout(const raii::Device& device) {
    const PushConstantRange range{.stageFlags = ShaderStageFlagBits::eCompute, .offset = 0, .size = kPushBytes};
    return {device, PipelineLayoutCreateInfo{.pushConstantRangeCount = 1, .pPushConstantRanges = &range}};
}

raii::Pipeline compile_kernel(const raii::Device& device, const Kernel& kernel, const raii::PipelineLayout& layout,
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
                                         .layout = *layout};
    return {device, cache, info};
}

}  // namespace vkrnn::vk
