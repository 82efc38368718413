#include "failed_waits.h"

#include "base/reports.h"

namespace vkrnn {
namespace {

// One may be an accident: another program may have had the device for a while.
constexpr std::uint64_t kMostFailures = 3;

}  // namespace

std::uint64_t FailedWaits::look() {
    if (word_ == 0) return found_;
    word_ = 0;
    const std::uint64_t found = ++found_;
    if (found == kMostFailures)
        report(Severity::warning,
               device_ +
                   ": workgroups waited too long for each other in several calls. From now on, layers run one "
                   "after the other, except on devices with wavefront=");
    return found;
}

std::shared_ptr<const Plan> FailedWaits::choose(const std::shared_ptr<const Plan>& plan) {
    return look() >= kMostFailures && plan->in_turn.plan ? plan->in_turn.plan : plan;
}

}  // namespace vkrnn
