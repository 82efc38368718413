#include "plan_cache.h"

namespace vkrnn {

std::shared_ptr<const Plan> PlanCache::get(const Spec& spec, const Profile& profile, const StrategyChoice& fixed,
                                           const Tuning& tuning) {
    const std::lock_guard lock(mutex_);
    if (const auto found = by_spec_.find(spec); found != by_spec_.end()) {
        plans_.splice(plans_.begin(), plans_, found->second);
        return plans_.front();
    }
    Plans made;
    made.push_front(std::make_shared<const Plan>(make_plan(spec, profile, fixed, tuning)));
    by_spec_.emplace(spec, made.begin());
    plans_.splice(plans_.begin(), made);
    if (plans_.size() > capacity_) {
        by_spec_.erase(plans_.back()->spec);
        plans_.pop_back();
    }
    return plans_.front();
}

std::size_t PlanCache::size() const {
    const std::lock_guard lock(mutex_);
    return plans_.size();
}

}  // namespace vkrnn
