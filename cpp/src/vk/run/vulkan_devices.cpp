#include "vk/run/vulkan_devices.h"

#include "base/messages.h"
#include "vk/device/vulkan_error.h"
#include "vk/run/executor.h"

namespace vkrnn::vk {

namespace {

template <class Function>
auto translated(const char* prefix, const Function& function) {
    try {
        return function();
    } catch (...) {
        rethrow_translated(prefix);
    }
}

constexpr const char* kListing = "listing the devices: ";

}  // namespace

std::vector<Profile> list() {
    return translated(kListing, [] {
        std::vector<Profile> profiles;
        for (auto& candidate : Context::get()->candidates()) {
            profiles.push_back(std::move(candidate.profile));
        }
        return profiles;
    });
}

std::vector<SkippedDevice> skipped() {
    return translated(kListing, [] { return Context::get()->skipped(); });
}

std::vector<std::string> memory_types(std::size_t index) {
    const auto memory =
        translated(kListing, [&] { return Context::get()->candidates().at(index).physical.getMemoryProperties(); });
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

std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed, const Tuning& tuning) {
    return translated("opening the device: ", [&]() -> std::shared_ptr<Device> {
        auto context = Context::get();
        auto candidates = context->candidates();
        SelectedDevice selected{std::move(context), std::move(candidates.at(index))};
        return std::make_shared<Executor>(std::move(selected), fixed, tuning);
    });
}

}  // namespace vkrnn::vk
