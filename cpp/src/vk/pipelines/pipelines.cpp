#include "vk/pipelines/pipelines.h"

#include <chrono>
#include <stdexcept>
#include <vector>

#include "vk/pipelines/cache_file.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

raii::PipelineCache open_cache(const raii::Device& device, const std::filesystem::path& file,
                               const PhysicalDeviceProperties& properties) {
    const std::vector<std::byte> data = read_cache(file, properties);
    try {
        return {device, PipelineCacheCreateInfo{.initialDataSize = data.size(), .pInitialData = data.data()}};
    } catch (const ::vk::SystemError&) {
        return {device, PipelineCacheCreateInfo{}};  // a driver that rejects its own data gets none
    }
}

}  // namespace

Pipelines::Pipelines(const Timeline& timeline, std::size_t capacity)
    : timeline_(timeline), device_(*timeline.device()), capacity_(capacity) {
    const PhysicalDeviceProperties properties = device_.physical().getProperties();
    file_ = cache_file(properties);
    const PushConstantRange range{.stageFlags = ShaderStageFlagBits::eCompute, .offset = 0, .size = kPushBytes};
    layout_ = raii::PipelineLayout(
        device_.handle(), PipelineLayoutCreateInfo{.pushConstantRangeCount = 1, .pPushConstantRanges = &range});
    cache_ = open_cache(device_.handle(), file_, properties);
}

SharedKernel Pipelines::get(const Kernel& kernel) {
    auto found = pipelines_.find(kernel);
    if (found == pipelines_.end()) {
        make_room();
        found = pipelines_.emplace(kernel, std::make_shared<CompiledKernel>(timeline_, compile(kernel))).first;
        size_ = pipelines_.size();
        unsaved_ = true;
    }
    found->second->turn = ++turn_;
    return found->second;
}

void Pipelines::make_room() {
    while (pipelines_.size() >= capacity_) {
        auto oldest = pipelines_.end();
        for (auto each = pipelines_.begin(); each != pipelines_.end(); ++each) {
            const bool held = each->second.use_count() > 1;
            if (!held && (oldest == pipelines_.end() || each->second->turn < oldest->second->turn)) {
                oldest = each;
            }
        }
        if (oldest == pipelines_.end()) {
            return;
        }
        pipelines_.erase(oldest);
    }
    size_ = pipelines_.size();
}

raii::Pipeline Pipelines::compile(const Kernel& kernel) {
    const auto code = shader_code(kernel.shader);
    if (code.empty()) {
        throw std::invalid_argument("there is no shader named '" + kernel.shader + "'");
    }
    const raii::ShaderModule module(device_.handle(),
                                    ShaderModuleCreateInfo{.codeSize = code.size_bytes(), .pCode = code.data()});
    std::vector<SpecializationMapEntry> entries;
    for (std::uint32_t id = 0; id < kernel.constants.size(); ++id) {
        entries.push_back({.constantID = id, .offset = id * 4, .size = 4});
    }
    const SpecializationInfo specialization{.mapEntryCount = static_cast<std::uint32_t>(entries.size()),
                                            .pMapEntries = entries.data(),
                                            .dataSize = kernel.constants.size() * 4,
                                            .pData = kernel.constants.data()};
    // Kernels rely on the profile's subgroup size; without this the driver may choose another one for each pipeline.
    const PipelineShaderStageRequiredSubgroupSizeCreateInfo size{.requiredSubgroupSize =
                                                                     device_.profile().subgroup_size};
    const ComputePipelineCreateInfo info{.stage = {.pNext = device_.fixes_subgroup_size() ? &size : nullptr,
                                                   .stage = ShaderStageFlagBits::eCompute,
                                                   .module = *module,
                                                   .pName = "main",
                                                   .pSpecializationInfo = &specialization},
                                         .layout = *layout_};
    return {device_.handle(), cache_, info};
}

void Pipelines::save(bool at_leisure) noexcept {
    if (!unsaved_ || (at_leisure && now() - saved_at_ < 1)) {
        return;
    }
    try {
        write_cache(file_, cache_.getData());
    } catch (...) {  // no cache then
    }
    unsaved_ = false;
    saved_at_ = now();
}

}  // namespace vkrnn::vk
