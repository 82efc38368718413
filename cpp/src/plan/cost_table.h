// The costs with which strategies estimate times: of each strategy, in a struct of its folder. They are data:
// cost_table.cpp has one table per family of GPUs, and bench/fit_costs.py measures a GPU and prints its table.
#pragma once

#include <span>
#include <string_view>

#include "plan/gpu/product_costs.h"
#include "plan/lane_costs.h"
#include "plan/matrices/matrices_costs.h"
#include "plan/portable/step_costs.h"
#include "plan/slices/slice_costs.h"
#include "plan/split/split_costs.h"
#include "plan/tiles/tile_costs.h"
#include "vkrnn/costs.h"

namespace vkrnn {

// Times are in microseconds, "us" in names. All members are numbers of type double, in structs.
struct Costs {
    StepCosts steps;
    TileCosts tiles;
    SliceCosts slices;
    MatrixCosts matrices;
    PersistentCosts persistent;
    SplitCosts split;
    ProductCosts products;
    LaneCosts lanes;
};

// The costs of one family of GPUs.
struct CostTable {
    std::span<const std::string_view> gpus;  // parts of the names of its GPUs
    std::string_view card;                   // what was measured
    Costs costs;
};

// Returns the table of a device's family, or another one if no table was fitted to it.
const CostTable& cost_table(const Profile& profile);
inline const Costs& costs_of(const Profile& profile) { return cost_table(profile).costs; }

// Returns the costs with the values of cost_values().
Costs costs_from(std::span<const double> values);

}  // namespace vkrnn
