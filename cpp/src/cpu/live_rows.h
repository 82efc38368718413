// The rows of sequences that are live, where batch rows have lengths: the time steps before each one's end.
#pragma once

#include <cstdint>

#include "cpu_work.h"

namespace vkrnn::cpu {

class Member;

// The table of cpu_work.h that a call makes of its lengths. Batch rows are sorted by length, the longest first, so that
// those which are live at a time step are the first ones. A batch row's place in that order is its position. Packed
// sequences have the live rows of step 0 by position, then those of step 1, and so on.
struct LiveRows {
    const std::int64_t* at;
    std::int64_t T, N;

    // By position: batch rows and their lengths.
    [[nodiscard]] const std::int64_t* order() const { return at; }
    [[nodiscard]] const std::int64_t* lengths() const { return at + N; }
    // By time step, and one for the end: how many rows are live in the steps before.
    [[nodiscard]] const std::int64_t* firsts() const { return at + 2 * N; }
    // By packed row: its row in a sequence that is not packed, t * N + batch row.
    [[nodiscard]] const std::int64_t* lines() const { return at + 2 * N + T + 1; }

    [[nodiscard]] std::int64_t count() const { return firsts()[T]; }
    [[nodiscard]] std::int64_t live(std::int64_t t) const { return firsts()[t + 1] - firsts()[t]; }
};

// Makes the table.
void order_rows(const OrderWork& work, Member& member);

}  // namespace vkrnn::cpu
