#include "cpu/work/live_rows.h"

#include <algorithm>

#include "cpu/threads/team.h"
#include "cpu/work/split.h"

namespace vkrnn::cpu {
namespace {

// A counting sort, which keeps batch rows of equal length in order.
void order(const std::int32_t* lengths, std::int64_t T, std::int64_t N, std::int64_t* table) {
    std::int64_t *const order = table, *const sorted = order + N, *const firsts = sorted + N;
    // Indexed by length: first the number of rows of that length, then the position of the next one.
    std::fill(firsts, firsts + T + 1, 0);
    for (std::int64_t n = 0; n < N; ++n) ++firsts[lengths[n]];
    for (std::int64_t length = T, next = 0; length >= 0; --length) {
        const std::int64_t count = firsts[length];
        firsts[length] = next;
        next += count;
    }
    for (std::int64_t n = 0; n < N; ++n) {
        const std::int64_t position = firsts[lengths[n]]++;
        order[position] = n;
        sorted[position] = lengths[n];
    }
    // Now firsts[t + 1] is the number of rows longer than t, which are those live at step t.
    for (std::int64_t t = 0, before = 0; t <= T; ++t) {
        const std::int64_t live = t < T ? firsts[t + 1] : 0;
        firsts[t] = before;
        before += live;
    }
}

}  // namespace

void order_rows(const OrderWork& work, Member& member) {
    auto* const table = reinterpret_cast<std::int64_t*>(static_cast<std::uintptr_t>(work.out));
    if (member.rank() == 0)
        order(reinterpret_cast<const std::int32_t*>(static_cast<std::uintptr_t>(work.lengths)), work.T, work.N, table);
    if (work.lines == 0 || member.barrier(0, member.rank(), member.size(), false) == 0) return;
    const LiveRows rows{table, work.T, work.N};
    std::int64_t* const lines = table + (rows.lines() - rows.at);
    const Range mine = part_of(work.T, member.rank(), member.size());
    for (std::int64_t t = mine.begin; t < mine.end; ++t)
        for (std::int64_t i = 0; i < rows.live(t); ++i) lines[rows.firsts()[t] + i] = t * work.N + rows.order()[i];
}

}  // namespace vkrnn::cpu
