#include "split.h"

#include <algorithm>

namespace vkrnn::cpu {
namespace {

// Of processors of this decade, in nanoseconds; only ratios matter much.
constexpr double kMultiplyAdd = 0.18;                  // of a vector of 32 bytes, in a tile of full height
constexpr double kByteNear = 0.035, kByteFar = 0.09;   // of weights, from a thread's own caches and from the shared one
constexpr double kNearBytes = 384 << 10;
constexpr double kCell = 12;                           // of a vector
constexpr double kStep = 60;                           // what a step of a thread takes besides
constexpr double kMeeting = 180, kMeetingOfMember = 60;
constexpr double kContendedMeeting = 1e5;
constexpr double kThread = 4000;                       // until a thread has begun and is waited for

// What a multiply-add takes in tiles of few rows, against one of full height: there are too few sums to keep the
// processor busy, or weights to be loaded for each.
double slowness(std::int64_t rows) {
    constexpr double kByRows[] = {2.3, 1.5, 1.25, 1.05};
    return rows <= 4 ? kByRows[rows - 1] : rows <= 12 ? 1.03 : 1.0;
}

double nanoseconds(const LoopShape& shape, const Split& split, bool contended) {
    const std::int64_t rows = (shape.rows + split.row_parts - 1) / split.row_parts;
    const std::int64_t vectors = (shape.vectors + split.unit_parts - 1) / split.unit_parts;
    const double wide = static_cast<double>(shape.lanes * shape.element_bytes) / 32;
    const double adds = static_cast<double>(rows * vectors * shape.products * shape.depth);
    const double weights = static_cast<double>(vectors * shape.products * shape.depth * shape.lanes * shape.element_bytes);
    const double compute = adds * kMultiplyAdd * slowness(rows) * (wide > 1 ? 1.2 : 1.0);
    const double load = weights * (weights > kNearBytes ? kByteFar : kByteNear);
    double step = std::max(compute, load) + static_cast<double>(rows * vectors) * kCell + kStep;
    if (split.unit_parts > 1) {
        const double meeting = contended ? kContendedMeeting : kMeeting + kMeetingOfMember * split.unit_parts;
        step += static_cast<double>(shape.meetings) * meeting;
    }
    const std::int64_t groups = shape.directions * split.row_parts;
    const std::int64_t rounds = (groups + split.teams - 1) / split.teams;
    return static_cast<double>(shape.steps * rounds) * step + kThread * (split.threads() - 1);
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

}  // namespace vkrnn::cpu
