#include "vk/run/open.h"

#include "messages.h"
#include "vk/device/error.h"
#include "vk/run/executor.h"

namespace vkrnn::vk {

std::vector<Profile> list() {
    std::vector<Profile> profiles;
    for (auto& candidate : Context::get()->candidates()) {
        profiles.push_back(std::move(candidate.profile));
    }
    return profiles;
}

std::vector<SkippedDevice> skipped() { return Context::get()->skipped(); }

std::vector<std::string> memory_types(std::size_t index) {
    const auto context = Context::get();
    const auto memory = context->candidates().at(index).physical.getMemoryProperties();
    std::vector<std::string> lines;
    for (std::uint32_t heap = 0; heap < memory.memoryHeapCount; ++heap) {
        const auto& found = memory.memoryHeaps.at(heap);
        lines.push_back("heap " + std::to_string(heap) + ": " + bytes_text(found.size) + " " +
                        ::vk::to_string(found.flags));
        for (std::uint32_t type = 0; type < memory.memoryTypeCount; ++type) {
            const auto& kind = memory.memoryTypes.at(type);
            if (kind.heapIndex == heap) {
                lines.push_back("  type " + std::to_string(type) + ": " + ::vk::to_string(kind.propertyFlags));
            }
        }
    }
    return lines;
}

std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed) {
    try {
        auto context = Context::get();
        auto candidates = context->candidates();
        SelectedDevice selected{std::move(context), std::move(candidates.at(index))};
        return std::make_shared<Executor>(std::move(selected), fixed);
    } catch (...) {
        rethrow_translated("opening the device: ");
    }
}

}  // namespace vkrnn::vk
