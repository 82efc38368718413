// Opening a device: which flavour it has, who helps it.
#include <algorithm>

#include "compiler.h"
#include "cpu_driver.h"
#include "error.h"
#include "executor.h"
#include "self_test.h"
#include "team.h"

namespace vkrnn {
namespace {

// The device, and in the broadcast flavour its helpers: in instances of their own, where it has no threads. Helpers
// import its memory, for which the host has to see that.
std::vector<vk::Seat> seats(const vk::Seat& wanted, const Flavour& flavour) {
    const bool helps = flavour.broadcasts() && !vk::staging_wanted() && vk::members_can_meet();
    const std::size_t members = helps ? vk::team_size() : 1;
    std::vector<vk::Seat> found;
    while (members > 1 && found.size() < members) {
        auto context = vk::Context::take_threadless();
        auto candidates = context->candidates();
        const auto same = std::find_if(candidates.begin(), candidates.end(), [&](const auto& candidate) {
            return candidate.profile == wanted.candidate.profile;
        });
        if (same == candidates.end()) {
            found.clear();
            break;
        }
        found.push_back({std::move(context), std::move(*same)});
    }
    return found.empty() ? std::vector{wanted} : std::move(found);
}

// On a device of its own, which leaves no trace in the one that is to be opened.
bool passes_self_test(const vk::Seat& seat, const Flavour& flavour) {
    try {
        vk::Executor device(seats(seat, flavour), flavour, true);
        return vk::broadcasts_right(device);
    } catch (const DeviceError&) {
        return false;
    }
}

}  // namespace

std::shared_ptr<Device> Device::open(std::size_t index, const std::optional<Flavour>& flavour) {
    try {
        auto context = vk::Context::get();
        auto candidates = context->candidates();
        if (index >= candidates.size()) {
            throw DeviceError("there is no device " + std::to_string(index) + ": the last of " +
                              std::to_string(candidates.size()) + " is " + std::to_string(candidates.size() - 1));
        }
        const vk::Seat seat{std::move(context), std::move(candidates[index])};
        Flavour chosen = flavour ? *flavour : choose_flavour(seat.candidate.profile);
        if (chosen.broadcasts() && !passes_self_test(seat, chosen)) {
            chosen.gemm = "register";
        }
        return std::make_shared<vk::Executor>(seats(seat, chosen), chosen, vk::patience_wanted());
    } catch (...) {
        vk::rethrow_translated("opening the device: ");
    }
}

}  // namespace vkrnn
