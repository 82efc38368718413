#include "vk/pipelines/pipelines.h"

#include <chrono>
#include <vector>

#include "vk/pipelines/cache_file.h"

namespace vkrnn::vk {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

raii::PipelineCache open_cache(const raii::Device& device, const std::filesystem::path& file,
                               const PhysicalDeviceProperties& properties) {
    const std::vector<std::byte> data = read_cache(file, properties);
    try {
        return {device, PipelineCacheCreateInfo{.initialDataSize = data.size(), .pInitialData = data.data()}};
    } catch (const ::vk::SystemError&) {
        return {device, PipelineCacheCreateInfo{}};  // if the driver rejects its own data, starts empty
    }
}

}  // namespace

Pipelines::Pipelines(const Timeline& timeline, std::size_t capacity)
    : timeline_(timeline), device_(*timeline.device()), capacity_(capacity) {
    const PhysicalDeviceProperties properties = device_.physical().getProperties();
    file_ = cache_file(properties);
    layout_ = make_layout(device_.handle());
    cache_ = open_cache(device_.handle(), file_, properties);
}

SharedKernel Pipelines::get(const Kernel& kernel) {
    auto found = pipelines_.find(kernel);
    if (found == pipelines_.end()) {
        make_room();
        // Kernels rely on the profile's subgroup size. Unless it is required here, the driver may choose another size
        // for each pipeline.
        const std::uint32_t size = device_.fixes_subgroup_size() ? device_.profile().subgroup_size : 0;
        auto compiled = compile_kernel(device_.handle(), kernel, layout(), cache_, size);
        found = pipelines_.emplace(kernel, std::make_shared<CompiledKernel>(timeline_, std::move(compiled))).first;
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

void Pipelines::save(bool at_leisure) noexcept {
    if (!unsaved_ || (at_leisure && now() - saved_at_ < 1)) {
        return;
    }
    try {
        write_cache(file_, cache_.getData());
    } catch (...) {  // the cache is then not written
    }
    unsaved_ = false;
    saved_at_ = now();
}

}  // namespace vkrnn::vk
