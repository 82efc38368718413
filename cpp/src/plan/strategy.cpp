// Chooses the strategies for a call.
#include "strategy.h"

#include <algorithm>
#include <bit>

#include "cost_table.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

template <class Part>
using Strategies = std::vector<const Part*>;

template <class Part>
Strategies<Part> running(std::span<const Part* const> all, const Profile& profile) {
    Strategies<Part> found;
    std::ranges::copy_if(all, std::back_inserter(found), [&](const Part* each) { return each->runs_on(profile); });
    return found;
}

template <class Part>
std::vector<std::string> names_of(const Strategies<Part>& strategies) {
    std::vector<std::string> names;
    for (const Part* strategy : strategies) names.emplace_back(strategy->name());
    return names;
}

std::string quoted(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "'" : " or '") + name + "'";
    return text;
}

// Returns the strategies that are left after the caller's choice: those of the fixed name, and of these, those that
// have the fixed tuning parameters. A parameter that none of them has belongs to the other part of the call. Throws
// ValueError if the device can run no strategy of that name.
template <class Part>
Strategies<Part> candidates(std::span<const Part* const> all, const std::string& option, const std::string& fixed,
                            const Parameters& parameters, const Profile& profile) {
    Strategies<Part> found = running(all, profile);
    if (!fixed.empty()) {
        const std::string expected = quoted(names_of(found));
        std::erase_if(found, [&](const Part* each) { return each->name() != fixed; });
        if (found.empty()) throw ValueError("[Device] " + option + ": expected " + expected + ", got '" + fixed + "'");
    }
    for (const auto& size : parameters) {
        const auto lacks = [&](const Part* each) { return !each->parameters(profile, {}).contains(size.first); };
        if (!std::ranges::all_of(found, lacks)) std::erase_if(found, lacks);
    }
    return found;
}

Strategies<LoopStrategy> loop_candidates(const StrategyChoice& fixed, const Profile& profile) {
    return candidates(loop_strategies(profile.backend), "schedule", fixed.schedule, fixed.parameters, profile);
}

Strategies<ProductStrategy> product_candidates(const StrategyChoice& fixed, const Profile& profile) {
    return candidates(product_strategies(profile.backend), "gemm", fixed.gemm, fixed.parameters, profile);
}

template <class Part>
const Part* best_of(const Strategies<Part>& candidates, const std::string& option, const Spec& spec,
                    const Profile& profile, const StrategyChoice& fixed, Parameters& parameters, double& microseconds) {
    const auto is_better = [](const CostEstimate& a, const CostEstimate& b) {
        return a.only_if_fixed == b.only_if_fixed ? !a.only_if_fixed && a.microseconds < b.microseconds
                                                  : b.only_if_fixed;
    };
    const Costs& costs = costs_of(profile);
    const Part* best = nullptr;
    CostEstimate least;
    for (const Part* candidate : candidates) {
        std::optional<CostEstimate> found = candidate->estimate(spec, profile, costs, fixed.parameters);
        if (!found || (best != nullptr && !is_better(*found, least))) continue;
        best = candidate;
        least = std::move(*found);
    }
    if (best == nullptr)
        throw NotImplementedError(message_prefix(spec.cell(), spec.gradients, {}) + " " + option + " " +
                                  quoted(names_of(candidates)) + " does not fit this call on " + profile.name);
    parameters.merge(least.parameters);
    microseconds = least.microseconds * least.ratio;
    return best;
}

Chosen choose(const Spec& spec, const Profile& profile, const StrategyChoice& fixed) {
    Parameters parameters;
    double loop_time = 0, products_time = 0;
    const auto* const loop =
        best_of(loop_candidates(fixed, profile), "schedule", spec, profile, fixed, parameters, loop_time);
    const auto* const products =
        best_of(product_candidates(fixed, profile), "gemm", spec, profile, fixed, parameters, products_time);
    return {*loop,
            *products,
            {std::string(loop->name()), std::string(products->name()), std::move(parameters)},
            loop_time,
            products_time};
}

template <class Part>
std::map<std::string, std::vector<Parameters>> variants_of(const Strategies<Part>& strategies, const Profile& profile) {
    std::map<std::string, std::vector<Parameters>> found;
    for (const Part* strategy : strategies) {
        std::vector<Parameters>& all = found[std::string(strategy->name())];
        all = strategy->variants(profile);
        all.insert(all.begin(), Parameters{});
    }
    return found;
}

// Returns the tuning parameters of the strategies that are left, with their values.
Parameters known_parameters(const StrategyChoice& fixed, const Profile& profile) {
    Parameters known;
    const auto add = [&](const auto& candidates) {
        for (const Strategy* candidate : candidates) known.merge(candidate->parameters(profile, fixed.parameters));
    };
    add(loop_candidates(fixed, profile));
    add(product_candidates(fixed, profile));
    return known;
}

void require_known(const std::string& name, const Parameters& known) {
    if (known.contains(name)) return;
    std::string options = "float32, schedule, gemm, wavefront";
    for (const auto& [other, value] : known) options += ", " + other;
    throw TypeError("[Device] " + name + ": unknown option; the options are " + options);
}

}  // namespace

TunedCall tuned_call(const Spec& spec) {
    const Cell& cell = spec.cell();
    return {.operation = std::string(spec.gradients ? cell.gradients_name : cell.name),
            .training = !spec.gradients && spec.descriptor.has(Flag::training),
            .dtype = spec.dtype,
            .precision = spec.precision,
            .T = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(spec.T))),
            .N = spec.N,
            .I = spec.I,
            .H = spec.H,
            .D = spec.D(),
            .phases = spec.two_phases() ? 2 : 1};
}

StrategyVariants list_variants(const Profile& profile) {
    return {variants_of(running(loop_strategies(profile.backend), profile), profile),
            variants_of(running(product_strategies(profile.backend), profile), profile)};
}

StrategyNames list_strategies(const Profile& profile) {
    return {names_of(running(loop_strategies(profile.backend), profile)),
            names_of(running(product_strategies(profile.backend), profile))};
}

void check_choice(const StrategyChoice& fixed, const Profile& profile) {
    const Parameters known = known_parameters(fixed, profile);
    for (const auto& [name, value] : fixed.parameters) require_known(name, known);
}

void check_name(const std::string& name, const Profile& profile) { require_known(name, known_parameters({}, profile)); }

Estimate estimate(const Spec& spec, const Profile& profile, const StrategyChoice& fixed,
                  std::span<const double> values) {
    const Costs costs = costs_from(values);
    const auto time_of = [&](const auto& candidates) {
        const std::optional<CostEstimate> found = candidates.front()->estimate(spec, profile, costs, fixed.parameters);
        if (!found) throw NotImplementedError("the strategy does not fit this call");
        return found->microseconds;
    };
    return {time_of(loop_candidates(fixed, profile)), time_of(product_candidates(fixed, profile))};
}

Chosen choose_strategies(const Spec& spec, const Profile& profile, const StrategyChoice& fixed, const Tuning& tuning) {
    // Tables have no calls with heads, or without a recurrent weight.
    const bool is_free = fixed.schedule.empty() && fixed.gemm.empty() && fixed.parameters.empty() && spec.recurs() &&
                         spec.heads() == 1 && spec.input_heads() == 1;
    const auto tuned = is_free ? tuning.find(tuned_call(spec)) : tuning.end();
    if (tuned != tuning.end()) {
        try {
            check_choice(tuned->second, profile);
            return choose(spec, profile, tuned->second);
        } catch (const Error&) {  // the entry does not fit these kernels or this call: use the cost estimates
        }
    }
    return choose(spec, profile, fixed);
}

}  // namespace vkrnn
