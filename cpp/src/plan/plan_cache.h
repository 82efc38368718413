// A cache of a device's plans.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>

#include "base/fork_safe_mutex.h"
#include "vkrnn/plan.h"

namespace vkrnn {

// Keeps the `capacity` most recently used plans. Thread-safe.
class PlanCache {
public:
    static constexpr std::size_t kUsualCapacity = 512;  // plans of a device
    explicit PlanCache(std::size_t capacity = kUsualCapacity) : capacity_(capacity) {}

    // Returns the plan for the spec. Calls make_plan() if there is none yet; its exceptions pass through.
    std::shared_ptr<const Plan> get(const Spec& spec, const Profile& profile, const StrategyChoice& fixed,
                                    const Tuning& tuning = {});

    [[nodiscard]] std::size_t size() const;

private:
    using Plans = std::list<std::shared_ptr<const Plan>>;  // most recently used first

    std::size_t capacity_;
    mutable ForkSafeMutex mutex_;
    Plans plans_;
    std::map<Spec, Plans::iterator> by_spec_;
};

}  // namespace vkrnn
