// The strategies of a call, as far as a caller fixes them, and as a plan was made with them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "vkrnn/dtype.h"
#include "vkrnn/profile.h"

namespace vkrnn {

// Sizes of strategies by name: "lanes", "rows", ...
using Sizes = std::map<std::string, std::uint32_t, std::less<>>;

// A strategy for each part of a call, and their sizes. A plan has all of them. In what a caller fixes, empty names and
// missing sizes are left open: they are chosen for each call.
struct StrategyChoice {
    std::string schedule;  // runs the time loop
    std::string gemm;      // runs the products and sums around it
    Sizes sizes;
    auto operator<=>(const StrategyChoice&) const = default;
};

// The names of the strategies that a device can run, for each part.
struct StrategyNames {
    std::vector<std::string> schedule, gemm;
};
StrategyNames list_strategies(const Profile& profile);

// Returns the precision in which a device multiplies numbers of a type where the caller accepts `wanted`. Only products
// of float32 numbers on matrix units can be rounded, so for all others it is ieee.
Precision product_precision(Precision wanted, Dtype dtype, const Profile& profile);

// The choices among which tuning measures: for each strategy of either part, by name, the sizes that are worth a
// measurement. The first entry of each is empty, which leaves the sizes to the strategy.
struct StrategyVariants {
    std::map<std::string, std::vector<Sizes>> schedule, gemm;
};
StrategyVariants list_variants(const Profile& profile);

// Throws ValueError where the device cannot run what is fixed, TypeError where no strategy has a size of that name.
void check_choice(const StrategyChoice& fixed, const Profile& profile);

}  // namespace vkrnn
