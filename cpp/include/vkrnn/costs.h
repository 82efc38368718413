// The costs with which strategies estimate times, for a program that fits them to measured times.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "vkrnn/profile.h"
#include "vkrnn/spec.h"
#include "vkrnn/strategy_choice.h"

namespace vkrnn {

// Returns the costs that a device's strategies use, in the order of their declaration in plan/cost_table.h.
std::vector<double> cost_values(const Profile& profile);

// The estimated microseconds of a call's parts.
struct Estimate {
    double schedule = 0, gemm = 0;
};

// Estimates the time of a call with both strategies fixed, with these values in place of the device's costs. Throws
// NotImplementedError if a strategy cannot run the call.
Estimate estimate(const Spec& spec, const Profile& profile, const StrategyChoice& fixed,
                  std::span<const double> values);

// Returns a message for the log if a GPU's strategies are chosen by the costs of another family; otherwise nothing.
std::string borrowed_costs(const Profile& profile);

}  // namespace vkrnn
