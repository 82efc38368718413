// Opening a device.
#include "error.h"
#include "executor.h"

namespace vkrnn {

std::shared_ptr<Device> Device::open(std::size_t index, const std::optional<Flavour>& flavour) {
    try {
        auto context = vk::Context::get();
        auto candidates = context->candidates();
        if (index >= candidates.size()) {
            throw DeviceError("there is no device " + std::to_string(index) + ": the last of " +
                              std::to_string(candidates.size()) + " is " + std::to_string(candidates.size() - 1));
        }
        vk::Seat seat{std::move(context), std::move(candidates[index])};
        Flavour chosen = flavour ? *flavour : choose_flavour(seat.candidate.profile);
        return std::make_shared<vk::Executor>(std::move(seat), std::move(chosen));
    } catch (...) {
        vk::rethrow_translated("opening the device: ");
    }
}

}  // namespace vkrnn
