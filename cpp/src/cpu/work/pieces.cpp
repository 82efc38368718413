#include "cpu/work/pieces.h"

namespace vkrnn::cpu {

// `stays`: prefers the lane `before`, whose weights are in the caches, and then the first lane. Otherwise prefers the
// first diagonal of the wavefront.
std::optional<Pieces::Piece> Pieces::take_ready(std::size_t before, bool stays) {
    const auto rank = [&](const Piece& piece) {
        if (!stays) return 2 * (piece.lane + piece.number) + (piece.lane == before ? 0 : 1);
        return piece.lane == before ? 0 : 1 + piece.lane;
    };
    for (;;) {
        std::optional<Piece> best;
        for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
            const Piece piece{lane, lanes_[lane].taken.load()};
            if (piece.number == pieces_ || lanes_[lane].done.load() != piece.number) continue;
            if (lane > 0 && lanes_[lane - 1].done.load() <= piece.number) continue;
            if (!best || rank(piece) < rank(*best)) best = piece;
        }
        if (!best) return std::nullopt;
        std::size_t number = best->number;
        if (lanes_[best->lane].taken.compare_exchange_strong(number, number + 1)) return best;
    }
}

std::optional<Pieces::Piece> Pieces::take(Member& member, std::size_t before, unsigned parts,
                                          std::chrono::steady_clock::duration spin) {
    // If the lanes cannot be divided among the parts, those that stay with a lane would wait at the end.
    const bool stays = lanes_.size() % parts == 0;
    std::optional<Piece> found;
    const auto holds = [&] {
        found = take_ready(before, stays);
        return found || lanes_.back().taken.load() == pieces_;  // the last lane's last piece is taken last
    };
    if (!member.wait(done_, holds, spin)) return std::nullopt;
    return found;
}

void Pieces::finish(const Piece& piece) {
    lanes_[piece.lane].done.store(piece.number + 1);
    done_.notify();
}

}  // namespace vkrnn::cpu
