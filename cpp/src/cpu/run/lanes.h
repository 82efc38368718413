// The lanes of a wavefront: loops of several layers, which parts of a team run at the same time in pieces of the time
// axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "cpu/threads/team.h"
#include "cpu/work/kernel.h"
#include "cpu/work/pieces.h"
#include "plan/cpu_work.h"

namespace vkrnn::cpu {

class Lanes {
public:
    // Does a member's share of a piece. Returns false if the team has been stopped.
    using Work = std::function<bool(Member& member, const Pieces::Piece& piece)>;

    // `parts`: into how many parts the team is divided, if it has enough threads.
    Lanes(std::size_t lanes, std::size_t pieces, unsigned parts, Work work)
        : pieces_(lanes, pieces), taken_(parts), work_(std::move(work)) {}

    // Runs all pieces. Returns false if the team has been stopped.
    bool run(Member& member);

private:
    void run_part(Member& member, unsigned part, unsigned parts);

    // What a part of the team works on; nothing at the end.
    struct alignas(64) Taken {
        std::optional<Pieces::Piece> piece{};
    };

    Pieces pieces_;             // first, because it is aligned to cache lines
    std::vector<Taken> taken_;  // by part
    const Work work_;
};

// What wavefronts take, at most, of the time of one layer after the other.
inline constexpr double kMostWavefrontTime = 0.9;

// Estimates the time of the loops of lanes. The lengths of a call are not considered.
class LaneTimes {
public:
    explicit LaneTimes(std::size_t pieces) : pieces_(static_cast<double>(pieces)) {}

    // Adds a loop that runs in each piece, on the same number of steps.
    void add(const NamedKernel& kernel, const std::uint32_t* constants, LoopWork work);

    // A division of a team, and the estimated nanoseconds of a wavefront on it.
    struct Division {
        unsigned parts;
        double nanoseconds;
    };
    // Returns the fastest division into two parts or more, at most `most`; 1 if there is one thread.
    [[nodiscard]] Division best_division(unsigned threads, unsigned most) const;

    // Returns the estimated nanoseconds of one lane after the other on all threads.
    [[nodiscard]] double in_turn(unsigned threads) const { return pieces_ * of_a_piece(threads).sum; }

private:
    struct Loop {
        const NamedKernel* kernel;
        const std::uint32_t* constants;
        LoopWork work;
    };
    struct Times {
        double sum = 0, longest = 0;
    };
    [[nodiscard]] Times of_a_piece(unsigned threads) const;
    [[nodiscard]] double at_once(unsigned threads, unsigned parts) const;

    double pieces_;
    std::vector<Loop> loops_{};
};

}  // namespace vkrnn::cpu
