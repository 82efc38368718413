#include "vkrnn/plan.h"

#include "builder.h"
#include "empty.h"
#include "forward.h"
#include "gradient.h"
#include "scratch.h"
#include "vkrnn/error.h"

namespace vkrnn {

Plan make_plan(const Spec& spec, const Profile& profile, const StrategyChoice& fixed, const Tuning& tuning) {
    if (spec.dtype == Dtype::float64 && !profile.float64)
        throw NotImplementedError(message_prefix(spec.cell(), spec.gradients, {}) +
                                  " float64 needs the device feature " + "shaderFloat64, which " + profile.name +
                                  " does not have");
    if (spec.N == 0) {
        Spec one = spec;
        one.N = 1;
        return make_empty_plan(spec, choose_strategies(one, profile, fixed, tuning).choice);
    }
    if (spec.packed() && profile.backend != Backend::native)
        throw NotImplementedError(message_prefix(spec.cell(), spec.gradients, {}) +
                                  " packed sequences run on the CPU only, not on " + profile.name);
    try {
        const Chosen chosen = choose_strategies(spec, profile, fixed, tuning);
        Plan plan =
            spec.gradients ? make_gradient_plan(spec, profile, chosen) : make_forward_plan(spec, profile, chosen);
        clear_first(plan);
        plan.shared = shared_scratch(plan, profile.max_allocation);
        return plan;
    } catch (const TooLarge& error) {
        throw NotImplementedError(message_prefix(spec.cell(), spec.gradients, {}) + " " + error.what());
    }
}

bool OtherPlan::operator==(const OtherPlan& other) const {
    return plan == other.plan || (plan != nullptr && other.plan != nullptr && *plan == *other.plan);
}

std::uint64_t Plan::bytes() const {
    std::uint64_t sum = 0;
    for (const PlanBuffer& buffer : buffers) sum += buffer.bytes;
    return sum;
}

std::uint64_t Plan::peak_bytes(std::span<const std::size_t> existing) const {
    std::uint64_t sum = bytes() - shared;
    for (const std::size_t buffer : existing) sum -= buffers.at(buffer).bytes;
    return sum;
}

std::uint64_t Plan::temporary_bytes() const {
    std::vector<std::size_t> existing = results;
    for (const auto& [argument, buffer] : inputs) existing.push_back(buffer);
    return peak_bytes(existing);
}

std::int64_t Plan::dispatches() const {
    struct Count {
        std::int64_t operator()(const Clear& /*clear*/) const { return 0; }
        std::int64_t operator()(const Dispatch& /*dispatch*/) const { return 1; }
        std::int64_t operator()(const Loop& loop) const {
            return loop.count * static_cast<std::int64_t>(loop.body.size());
        }
        std::int64_t operator()(const Sequence& sequence) const {
            std::int64_t count = 0;
            for (const auto& step : sequence) count += std::visit(*this, step);
            return count;
        }
        std::int64_t operator()(const Branches& branches) const {
            std::int64_t count = 0;
            for (const Sequence& branch : branches.branches) count += (*this)(branch);
            return count;
        }
        std::int64_t operator()(const Wavefront& wavefront) const {
            std::int64_t count = 0;
            for (const Wavefront::Lane& lane : wavefront.lanes)
                for_each_piece(lane, [&](const Sequence& piece) { count += (*this)(piece); });
            return count;
        }
    };
    std::int64_t count = 0;
    for (const Step& step : steps) count += std::visit(Count{}, step);
    return count;
}

}  // namespace vkrnn
