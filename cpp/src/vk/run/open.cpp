#include "vk/run/open.h"

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
