// How the threads of a call share a time loop.
#pragma once

#include <cstdint>

#include "plan/cpu_work.h"

namespace vkrnn::cpu {

// A way to share a time loop. Each team of `unit_parts` threads processes one of `directions * row_parts` groups of
// batch rows at a time. The members of a team share the units and wait at a barrier in every step. Results do not
// depend on the split.
struct Split {
    unsigned row_parts = 1, unit_parts = 1;
    unsigned teams = 1;
    [[nodiscard]] unsigned threads() const { return teams * unit_parts; }
};

// Estimated nanoseconds to start a thread and to wait for it.
inline constexpr double kThread = 4000;

// With at least kManyRows live batch rows, each step computes its own x W^T. With fewer, it is computed for several
// steps at once, up to kAheadRows rows, so that each loaded weight serves many rows.
inline constexpr std::int64_t kManyRows = 24, kAheadRows = 48;

struct LoopShape {
    std::int64_t steps, rows, directions;
    std::int64_t vectors;   // number of vectors of units
    std::int64_t products;  // multiply-adds for each unit and k: the gates forward, 1 backward
    std::int64_t depth;     // number of k
    std::int64_t lanes, element_bytes;
    std::int64_t barriers;  // barriers in a step
    // If tile_rows, the height of a product's highest tile, is not 0, the wait of the first tile for weights counts.
    // `features` of the k belong to x W^T.
    std::int64_t tile_rows = 0, features = 0;
};

// Returns the split with the lowest estimated time on at most `most` threads. `contended`: barriers take long and
// threads start late.
Split choose_split(const LoopShape& shape, unsigned most, bool contended);

// Returns the estimated nanoseconds of a loop on threads that have begun, with the best split and without contention.
double loop_nanoseconds(const LoopShape& shape, unsigned threads);

// A half-open range. part_of() returns part number `which` of `parts` about equal parts of [0, count).
struct Range {
    std::int64_t begin, end;
};
constexpr Range part_of(std::int64_t count, std::int64_t which, std::int64_t parts) {
    return {count * which / parts, count * (which + 1) / parts};
}

}  // namespace vkrnn::cpu
