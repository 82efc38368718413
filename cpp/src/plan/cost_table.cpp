#include "cost_table.h"

#include <algorithm>
#include <array>
#include <bit>

namespace vkrnn {
namespace {

using Values = std::array<double, sizeof(Costs) / sizeof(double)>;

// By bench/results/gpu-notes.md and the history of these numbers, on an H200 unless said otherwise, with scripts that
// were not kept:
// - steps: rough rates, never fitted.
// - tiles: fitted on 2026-11-23 to steps of an earlier version of its kernels.
// - slices: fitted on 2026-11-23.
// - matrices: fitted on 2026-11-26 to 2,000 measurements, several shapes for each of 107 calls.
// - persistent: forward first fitted on 2026-11-25 to 61 measurements on an H100, then both passes on 2026-11-26 to the
//   107 calls.
// - split: fitted by hand on 2026-11-27 to ten LSTM calls in float16, bfloat16 and TF32, by split-h200.txt.
// - products: the rates of matrix units were measured on 2026-11-23, except rounded_flops_per_us, which is a guess. The
//   costs of the library and of float64 were measured on 2026-11-27 on an H100, library_forward on 2026-11-29. The
//   others are rough rates; only their order matters.
// - lanes: by hand on 2026-11-28, from fourteen networks of four and eight layers in six schedules each;
//   backward.loading on 2026-11-29, since such loops keep a part of their weights, and the costs of dispatches from
//   fourteen networks in up to six schedules each, since lanes begin and end beside each other.
// bench/fit_costs.py reads this initializer. It does not fit the numbers in lines with the comment "limit".
constexpr std::string_view kHopperGpus[] = {"H100", "H200"};
constexpr CostTable kHopper{
    .gpus = kHopperGpus,
    .card = "NVIDIA H200",
    .costs = {.steps = {.dispatch = 4, .flops_per_us = 1e7, .weight_bytes_per_us = 4e6},
              .tiles = {.step = 2.5, .group = 0.5, .backward = 1.2, .flops_per_us = 3.5e5, .bytes_per_us = 4.2e4},
              .slices = {.cycles_per_us = 1900,
                         .products_per_cycle = 128,
                         .issues_per_cycle = 4,
                         .wait = 250,
                         .activation_wait = 110,
                         .level_wait = 30,
                         .product_wait = 1.5,
                         .shared_vec4 = 4,
                         .other_vec4 = 10,
                         .activation_issues = 40,
                         .gate_issues = 12,
                         .cell_issues = 30,
                         .dispatch = 4,
                         .most_held = 44},  // limit
              .matrices = {.forward = {.step = 2.5, .block = 0.3, .product = 0.0018, .row = 0.7},
                           .backward = {.step = 3.8, .block = 0.19, .product = 0.0052, .row = 0},
                           .one_part_ahead = 0.9,
                           .two_parts_ahead = 0.7,
                           .sum = 0.044,
                           .cell = 0.25,
                           .memory_bytes_per_us = 1.8e7,
                           .l2_bytes = 4.8e7},  // limit
              .persistent = {.forward = {.step = 1.3,
                                         .count = 0.5,
                                         .sixteen = 0.4,
                                         .sum = 0.025,
                                         .block = 0.3,
                                         .block_row = 0.06,
                                         .bytes_per_us = 9e6,
                                         .flops_per_us = 1.65e6,
                                         .cell = 0.8,
                                         .free_sums = 16},  // limit
                             .backward = {.step = 1.2,
                                          .product = 0.032,
                                          .block = 0.06,
                                          .waiting_block = 0.002,
                                          .sixteen = 0.2,
                                          .more_block = 0.25,
                                          .tile = 0.6,
                                          .delta = 2.2,
                                          .register_blocks = 10},  // limit
                             .dispatch = 10,
                             .saved_dispatch = 1.4,
                             .beyond_cache = 5,
                             .saved_loads = 0.4,
                             .rounded_loads = 1,
                             .most_gainful_blocks = 8,             // limit
                             .most_tagged_blocks = 4,              // limit
                             .most_tagged_products = 64,           // limit
                             .most_rounded_tagged_products = 96},  // limit
              .split = {.forward = {.least = 14,
                                    .step = 5.5,
                                    .half_flops_per_us = 1e9,
                                    .rounded_flops_per_us = 5e8,
                                    .cells_per_us = 6e4},
                        .backward = {.least = 14,
                                     .step = 6,
                                     .half_flops_per_us = 1e9,
                                     .rounded_flops_per_us = 1.8e8,
                                     .cells_per_us = 2.6e4},
                        .half_bytes_per_us = 6e6,
                        .rounded_bytes_per_us = 3.5e6},
              .products = {.least_flops = 1e7,
                           .register_flops_per_us = 1e7,
                           .tiled_flops_per_us = 2.5e7,
                           .matrix_call = 30,
                           .matrix_flops_per_us = 1e8,
                           .rounded_flops_per_us = 3e8,
                           .least_matrix_flops = 2e8,  // limit
                           .float64_factor = 4,
                           .library_forward = 7.5,
                           .library_gradients = 2,
                           .library_flops_per_us = 3.8e8,
                           .half_library_flops_per_us = 7e8,
                           .exact_library_flops_per_us = 5e7},
              .lanes = {.forward_dispatch = 4.25,                                                  // limit
                        .backward_dispatch = 6.5,                                                  // limit
                        .other_dispatch = 2.5,                                                     // limit
                        .forward = {.kept = 0.53, .loading = 0.82, .slices = 0.6, .matrices = 1},  // limit
                        .backward = {.kept = 1, .loading = 0.8, .slices = 1, .matrices = 2},       // limit
                        .most_time = 0.9}}};                                                       // limit

// Vulkan on a CPU, where an invocation is one SIMD lane and barriers are slow: rough rates. Only `steps` and the
// portable products are used there unless a caller fixes others.
constexpr CostTable kCpu = [] {
    CostTable table = kHopper;
    table.gpus = {};
    table.card = "a CPU";
    table.costs.products.register_flops_per_us = 2e4;
    table.costs.products.tiled_flops_per_us = 1e4;
    return table;
}();

constexpr const CostTable* kGpuTables[] = {&kHopper};  // the first is that of unknown GPUs

bool is_for(const CostTable& table, const Profile& profile) {
    return std::ranges::any_of(table.gpus,
                               [&](std::string_view gpu) { return profile.name.find(gpu) != std::string::npos; });
}

}  // namespace

const CostTable& cost_table(const Profile& profile) {
    if (profile.type == DeviceType::cpu) return kCpu;
    const auto* const found =
        std::ranges::find_if(kGpuTables, [&](const auto* table) { return is_for(*table, profile); });
    return found != std::end(kGpuTables) ? **found : *kGpuTables[0];
}

std::vector<double> cost_values(const Profile& profile) {
    const auto values = std::bit_cast<Values>(costs_of(profile));
    return {values.begin(), values.end()};
}

Costs costs_from(std::span<const double> values) {
    Values copied{};
    std::ranges::copy(values, copied.begin());
    return std::bit_cast<Costs>(copied);
}

std::string borrowed_costs(const Profile& profile) {
    const CostTable& table = cost_table(profile);
    if (profile.type == DeviceType::cpu || is_for(table, profile)) return {};
    return "no costs were measured on " + profile.name + ": strategies are chosen by those of an " +
           std::string(table.card) + "; python -m vkrnn tune measures this device";
}

}  // namespace vkrnn
