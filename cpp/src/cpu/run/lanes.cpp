#include "cpu/run/lanes.h"

#include <algorithm>
#include <chrono>

namespace vkrnn::cpu {

bool Lanes::run(Member& member) {
    const unsigned size = member.size(), parts = std::min(size, static_cast<unsigned>(taken_.size()));
    const unsigned part = member.rank() * parts / size;
    const auto first_of = [&](unsigned some) { return (some * size + parts - 1) / parts; };
    Member of_part = member.in_part(first_of(part), first_of(part + 1) - first_of(part));
    run_part(of_part, part, parts);
    return member.barrier(0, member.rank(), size, false) != 0;
}

void Lanes::run_part(Member& member, unsigned part, unsigned parts) {
    using namespace std::chrono_literals;
    using Clock = std::chrono::steady_clock;
    constexpr Clock::duration kMostSpin = 200us;
    Clock::duration spin = kMostSpin;
    std::optional<Pieces::Piece>& taken = taken_[part].piece;
    for (std::size_t lane = part;;) {
        if (member.rank() == 0) taken = pieces_.take(member, lane, parts, spin);
        if (member.barrier(0, member.rank(), member.size(), false) == 0 || !taken) return;
        lane = taken->lane;
        const auto start = Clock::now();
        if (!work_(member, *taken)) return;
        spin = std::min<Clock::duration>(kMostSpin, (Clock::now() - start) / 2);
        if (member.rank() == 0) pieces_.finish(*taken);
    }
}

void LaneTimes::add(const NamedKernel& kernel, const std::uint32_t* constants, LoopWork work) {
    work.has_lengths = 0;
    loops_.push_back({&kernel, constants, work});
}

LaneTimes::Times LaneTimes::of_a_piece(unsigned threads) const {
    Times found;
    for (const Loop& loop : loops_) {
        const double time = loop.kernel->time(reinterpret_cast<const std::byte*>(&loop.work), loop.constants, threads);
        found.sum += time;
        found.longest = std::max(found.longest, time);
    }
    return found;
}

double LaneTimes::at_once(unsigned threads, unsigned parts) const {
    constexpr double kPiece = 400;  // to prepare a piece, and to take it
    const auto [sum, longest] = of_a_piece(threads / parts);
    return pieces_ * std::max(sum / parts, longest) + (parts - 1) * longest +
           kPiece * pieces_ * static_cast<double>(loops_.size());
}

LaneTimes::Division LaneTimes::best_division(unsigned threads, unsigned most) const {
    most = std::min(threads, most);
    Division best{most, at_once(threads, most)};
    for (unsigned parts = most - 1; parts > 1; --parts)
        if (const double time = at_once(threads, parts); time < best.nanoseconds) best = {parts, time};
    return best;
}

}  // namespace vkrnn::cpu
