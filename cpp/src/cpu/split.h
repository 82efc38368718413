// How a time loop is shared between threads.
#pragma once

#include <cstdint>

#include "cpu_work.h"

namespace vkrnn::cpu {

// Each team of `unit_parts` threads takes one of `directions * row_parts` groups of batch rows at a time, and its
// members parts of the units; they meet in every step. What is computed does not depend on it.
struct Split {
    unsigned row_parts = 1, unit_parts = 1;
    unsigned teams = 1;
    [[nodiscard]] unsigned threads() const { return teams * unit_parts; }
};

struct LoopShape {
    std::int64_t steps, rows, directions;
    std::int64_t vectors;   // of units
    std::int64_t products;  // for each unit and k: the gates forward, 1 backward
    std::int64_t depth;     // of k
    std::int64_t lanes, element_bytes;
    std::int64_t meetings;  // in a step
};

// The split that should take the least time with at most so many threads. `contended`: meetings take long,
// and threads begin late.
Split choose_split(const LoopShape& shape, unsigned most, bool contended);

// [begin, end) of part `which` of `parts` about equal ones.
struct Range {
    std::int64_t begin, end;
};
constexpr Range part_of(std::int64_t count, std::int64_t which, std::int64_t parts) {
    return {count * which / parts, count * (which + 1) / parts};
}

}  // namespace vkrnn::cpu
