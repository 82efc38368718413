#include "cpu/work/split.h"

#include <algorithm>

#include "base/lazy.h"
#include "base/system.h"

namespace vkrnn::cpu {
namespace {

// Estimated costs on current processors, in nanoseconds. Mostly their ratios matter.
constexpr double kMultiplyAdd = 0.18;                 // of a 32-byte vector, in a tile of full height
constexpr double kLongVector = 1.2;                   // factor for a 64-byte vector
constexpr double kByteNear = 0.012, kByteFar = 0.03;  // of weights, in and outside a processor's own caches
constexpr double kByteExchanged = 0.05;               // of data that another processor has written
constexpr double kCell = 15;                          // cell arithmetic for a vector
constexpr double kStep = 60;                          // fixed cost of a step for each thread
constexpr double kBarrier = 500, kBarrierPerMember = 180;
constexpr double kContendedBarrier = 1e5;
constexpr double kContendedThread = 1e6;  // if it has to wait for a processor first

// Returns the bytes of weights that stay in a processor's own caches from step to step.
double near_bytes() {
    static constinit Lazy<double> bytes;
    return bytes.get([] {
        const std::uint64_t cache = system::second_level_cache();
        return 0.75 * static_cast<double>(cache > 0 ? cache : 512 << 10);
    });
}

// Returns the time of a multiply-add in a small tile relative to a full one. Small tiles have too few sums to keep the
// processor busy, or load too much for each sum.
double slowness(std::int64_t rows, std::int64_t vectors) {
    constexpr double kByRows[] = {2.3, 1.5, 1.25, 1.05};
    const double narrow = vectors == 1 ? 1.4 : vectors == 2 ? 1.1 : 1.0;
    return narrow * (rows <= 4 ? kByRows[rows - 1] : rows <= 12 ? 1.03 : 1.0);
}

// Returns how long the first of several tiles of batch rows waits for weights while it computes. The others find them
// in the L1 cache.
double wait_of_first_tile(const LoopShape& shape, std::int64_t rows, double compute, double load) {
    if (rows <= shape.tile_rows || shape.tile_rows == 0) return 0;
    const std::int64_t tiles = (rows + shape.tile_rows - 1) / shape.tile_rows;
    std::int64_t depth = shape.depth;
    if (rows < kManyRows) {
        const std::int64_t steps = kAheadRows / rows;
        depth -= shape.features * (steps - 1) / steps;
    }
    const double share = static_cast<double>(depth) / static_cast<double>(shape.depth);
    return std::max(0.0, load * share - compute / static_cast<double>(tiles));
}

double nanoseconds(const LoopShape& shape, const Split& split, bool contended) {
    const std::int64_t rows = (shape.rows + split.row_parts - 1) / split.row_parts;
    const std::int64_t vectors = (shape.vectors + split.unit_parts - 1) / split.unit_parts;
    const std::int64_t vector_bytes = shape.lanes * shape.element_bytes;
    const auto adds = static_cast<double>(rows * vectors * shape.products * shape.depth);
    const auto weights = static_cast<double>(vectors * shape.products * shape.depth * vector_bytes);
    const double compute = adds * kMultiplyAdd * slowness(rows, vectors) * (vector_bytes > 32 ? kLongVector : 1.0);
    const double load = weights * (weights > near_bytes() ? kByteFar : kByteNear);
    double step = std::max(compute, load) + wait_of_first_tile(shape, rows, compute, load) +
                  static_cast<double>(rows * vectors) * kCell + kStep;
    if (split.unit_parts > 1 && shape.barriers > 0) {
        const auto exchanged = static_cast<double>(rows * (shape.vectors - vectors) * vector_bytes);
        const double barrier = contended ? kContendedBarrier : kBarrier + kBarrierPerMember * split.unit_parts;
        step += static_cast<double>(shape.barriers) * barrier + exchanged * kByteExchanged;
    }
    const std::int64_t groups = shape.directions * split.row_parts;
    const std::int64_t rounds = (groups + split.teams - 1) / split.teams;
    const double thread = contended ? kContendedThread : kThread;
    return static_cast<double>(shape.steps * rounds) * step + thread * (split.threads() - 1);
}

}  // namespace

Split choose_split(const LoopShape& shape, unsigned most, bool contended) {
    Split best;
    double least = nanoseconds(shape, best, contended);
    for (unsigned unit_parts = 1; unit_parts <= most && unit_parts <= shape.vectors; ++unit_parts) {
        for (unsigned row_parts = 1; row_parts * unit_parts <= most && row_parts <= shape.rows; ++row_parts) {
            const auto groups = static_cast<unsigned>(shape.directions) * row_parts;
            const Split split{row_parts, unit_parts, std::min(groups, most / unit_parts)};
            const double time = nanoseconds(shape, split, contended);
            if (time < least) {
                least = time;
                best = split;
            }
        }
    }
    return best;
}

double loop_nanoseconds(const LoopShape& shape, unsigned threads) {
    const Split split = choose_split(shape, threads, false);
    return nanoseconds(shape, split, false) - kThread * (split.threads() - 1);
}

}  // namespace vkrnn::cpu
