// The strategies of a call: those that a caller fixes, and those that a plan was made with.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "vkrnn/profile.h"

namespace vkrnn {

struct Spec;

// Tuning parameters of strategies by name: "lanes", "rows", ...
using Parameters = std::map<std::string, std::uint32_t, std::less<>>;

// A strategy for each part of a call, and their tuning parameters. A plan has all of them. A caller may leave names
// empty and parameters out; these are chosen for each call.
struct StrategyChoice {
    std::string schedule;  // runs the time loop
    std::string gemm;      // runs the products and sums around it
    Parameters parameters;
    // How a network's layers run: the steps of a piece of a wavefront, or 0: one layer after the other.
    std::optional<std::int64_t> wavefront = {};
    auto operator<=>(const StrategyChoice&) const = default;
};

// The names of the strategies that a device can run, for each part.
struct StrategyNames {
    std::vector<std::string> schedule, gemm;
};
StrategyNames list_strategies(const Profile& profile);

// Returns the spec of a call on a device, with the precision of its products. `tf32`: float32 products may be rounded.
// Only those on matrix units can be; all others are ieee.
Spec spec_on(Spec spec, const Profile& profile, bool tf32);

// The candidates that tuning measures: for each strategy by name, the tuning parameters that are worth measuring. The
// first entry of each list is empty, so the strategy chooses its parameters.
struct StrategyVariants {
    std::map<std::string, std::vector<Parameters>> schedule, gemm;
};
StrategyVariants list_variants(const Profile& profile);

// Throws ValueError if the device cannot run what is fixed, TypeError if no strategy has a tuning parameter of that
// name.
void check_choice(const StrategyChoice& fixed, const Profile& profile);

// Throws TypeError if none of the device's strategies has a tuning parameter of that name.
void check_name(const std::string& name, const Profile& profile);

}  // namespace vkrnn
