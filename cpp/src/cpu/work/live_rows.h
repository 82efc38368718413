// Live rows: if batch rows have lengths, those whose sequence has not ended at a time step.
#pragma once

#include <cstdint>

#include "plan/cpu_work.h"

namespace vkrnn::cpu {

class Member;

// The table that OrderWork (cpu_work.h) makes from a call's lengths. Batch rows are sorted by length, the longest
// first, so the rows that are live at a time step come first. The position of a batch row is its place in that order. A
// packed sequence has the live rows of step 0 by position, then those of step 1, and so on.
struct LiveRows {
    const std::int64_t* at;
    std::int64_t T, N;

    // By position: the batch rows, and their lengths.
    [[nodiscard]] const std::int64_t* order() const { return at; }
    [[nodiscard]] const std::int64_t* lengths() const { return at + N; }
    // By time step: how many rows are live in all earlier steps. The last element is the total.
    [[nodiscard]] const std::int64_t* firsts() const { return at + 2 * N; }
    // By packed row: its row in an unpacked sequence, t * N + batch row.
    [[nodiscard]] const std::int64_t* lines() const { return at + 2 * N + T + 1; }

    [[nodiscard]] std::int64_t count() const { return firsts()[T]; }
    [[nodiscard]] std::int64_t live(std::int64_t t) const { return firsts()[t + 1] - firsts()[t]; }
};

// Makes the table.
void order_rows(const OrderWork& work, Member& member);

}  // namespace vkrnn::cpu
