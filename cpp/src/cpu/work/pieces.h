// Assigns the pieces of a wavefront to the parts of a team.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/threads/team.h"

namespace vkrnn::cpu {

// The pieces of a wavefront that are not done yet. Piece c of a lane is ready when piece c - 1 of its lane and piece c
// of the lane before it are done. A part of the team takes whichever ready piece it can, so that a thread that is late
// holds up only the piece that it has taken.
class Pieces {
public:
    struct Piece {
        std::size_t lane, number;
    };

    Pieces(std::size_t lanes, std::size_t pieces) : pieces_(pieces), lanes_(lanes) {}

    // Takes a ready piece for one of a team's parts, or waits for one. `before`: the lane of the piece that this part
    // has done before. `parts`: how many there are. `spin`: see Member::wait. Returns nothing if no piece is left, or
    // if the team has been stopped.
    std::optional<Piece> take(Member& member, std::size_t before, unsigned parts,
                              std::chrono::steady_clock::duration spin);
    // Notes that a piece has been done.
    void finish(const Piece& piece);

private:
    struct alignas(64) Lane {
        std::atomic<std::size_t> taken = 0, done = 0;
    };
    std::optional<Piece> take_ready(std::size_t before, bool stays);

    const std::size_t pieces_;
    std::vector<Lane> lanes_;
    Signal done_;
};

}  // namespace vkrnn::cpu
