#include "cpu/run/plan_work.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>

#include "base/seconds.h"
#include "cpu/threads/team.h"
#include "cpu/work/pieces.h"
#include "cpu/work/split.h"
#include "plan/cpu_work.h"
#include "run/buffer_references.h"

namespace vkrnn::cpu {
namespace {

// Makes the tasks of a plan.
class TaskMaker {
public:
    TaskMaker(const Plan& plan, const Target& target, const std::function<std::byte*(std::size_t)>& at)
        : plan_(plan), at_(at) {
        for (const Kernel& kernel : plan.kernels) kernels_.push_back(&find_kernel(target, kernel.shader));
    }

    [[nodiscard]] Task make(const Dispatch& dispatch) const {
        Task task{kernels_[dispatch.kernel], plan_.kernels[dispatch.kernel].constants.data()};
        task.work.resize((dispatch.push.bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
        copy_with_addresses(dispatch.push, plan_.buffers.size(), reinterpret_cast<std::byte*>(task.work.data()),
                            [&](std::size_t buffer) { return reinterpret_cast<std::uintptr_t>(at_(buffer)); });
        return task;
    }
    [[nodiscard]] std::vector<Task> make(const Wavefront::Piece& piece) const {
        std::vector<Task> tasks;
        for (const auto& step : piece) tasks.push_back(make(std::get<Dispatch>(step)));
        return tasks;
    }

private:
    const Plan& plan_;
    const std::function<std::byte*(std::size_t)>& at_;
    std::vector<const NamedKernel*> kernels_;
};

// Runs a task on a team or a part of it. Returns false if it has been stopped.
bool run_task(const Task& task, Member& member) {
    task.kernel->run(task.bytes_of_work(), task.constants, member);
    return member.barrier(0, member.rank(), member.size(), false) != 0;
}

// Estimates the time of a wavefront's loops. The lengths of a call are not considered.
class LoopTimes {
public:
    LoopTimes(const Plan& plan, const Wavefront& wavefront, const Target& target)
        : pieces_(static_cast<double>(wavefront.lanes.front().size())) {
        for (const Wavefront::Lane& lane : wavefront.lanes)
            for (const auto& step : lane.front()) {  // all pieces but the last one have as many steps
                const auto& dispatch = std::get<Dispatch>(step);
                const Kernel& kernel = plan.kernels[dispatch.kernel];
                const NamedKernel& named = find_kernel(target, kernel.shader);
                if (named.time == nullptr) continue;
                Loop loop{&named, kernel.constants.data()};
                std::memcpy(&loop.work, dispatch.push.bytes.data(), sizeof(loop.work));
                loop.work.has_lengths = 0;
                loops_.push_back(loop);
            }
    }

    // Return the nanoseconds of lanes one after the other on all threads, and at the same time on parts of them.
    [[nodiscard]] double in_turn(unsigned threads) const { return pieces_ * of_a_piece(threads).sum; }
    [[nodiscard]] double at_once(unsigned threads, unsigned parts) const {
        constexpr double kPiece = 400;  // to prepare a piece, and to take it
        const auto [sum, longest] = of_a_piece(threads / parts);
        return pieces_ * std::max(sum / parts, longest) + (parts - 1) * longest +
               kPiece * pieces_ * static_cast<double>(loops_.size());
    }

private:
    struct Loop {
        const NamedKernel* kernel;
        const std::uint32_t* constants;
        LoopWork work{};
    };
    struct Times {
        double sum = 0, longest = 0;
    };
    [[nodiscard]] Times of_a_piece(unsigned threads) const {
        Times found;
        for (const Loop& loop : loops_) {
            const double time =
                loop.kernel->time(reinterpret_cast<const std::byte*>(&loop.work), loop.constants, threads);
            found.sum += time;
            found.longest = std::max(found.longest, time);
        }
        return found;
    }

    double pieces_;
    std::vector<Loop> loops_;
};

}  // namespace

// The lanes of a wavefront. Parts of a team run them at the same time.
class Lanes {
public:
    // `parts`: into how many parts the team is divided, if it has enough threads.
    Lanes(const Wavefront& wavefront, const TaskMaker& maker, unsigned parts)
        : pieces_(wavefront.lanes.size(), wavefront.lanes.front().size()), taken_(parts) {
        for (const Wavefront::Lane& lane : wavefront.lanes) {
            auto& tasks = lanes_.emplace_back();
            for (const Wavefront::Piece& piece : lane) {
                tasks.push_back(maker.make(piece));
                dispatches_ += piece.size();
            }
        }
    }

    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }

    // Returns false if the team has been stopped.
    bool run(Member& member) {
        const unsigned size = member.size(), parts = std::min(size, static_cast<unsigned>(taken_.size()));
        const unsigned part = member.rank() * parts / size;
        const auto first_of = [&](unsigned some) { return (some * size + parts - 1) / parts; };
        Member of_part = member.in_part(first_of(part), first_of(part + 1) - first_of(part));
        run_part(of_part, part, parts);
        return member.barrier(0, member.rank(), size, false) != 0;
    }

private:
    void run_part(Member& member, unsigned part, unsigned parts) {
        using namespace std::chrono_literals;
        constexpr Clock::duration kMostSpin = 200us;
        Clock::duration spin = kMostSpin;
        std::optional<Pieces::Piece>& taken = taken_[part].piece;
        for (std::size_t lane = part;;) {
            if (member.rank() == 0) taken = pieces_.take(member, lane, parts, spin);
            if (member.barrier(0, member.rank(), member.size(), false) == 0 || !taken) return;
            lane = taken->lane;
            const auto start = Clock::now();
            for (const Task& task : lanes_[lane][taken->number])
                if (!run_task(task, member)) return;
            spin = std::min<Clock::duration>(kMostSpin, (Clock::now() - start) / 2);
            if (member.rank() == 0) pieces_.finish(*taken);
        }
    }

    // What a part of the team works on; nothing at the end.
    struct alignas(64) Taken {
        std::optional<Pieces::Piece> piece{};
    };

    Pieces pieces_;                                        // first, because it is aligned to cache lines
    std::vector<std::vector<std::vector<Task>>> lanes_{};  // by lane and piece
    std::vector<Taken> taken_;                             // by part
    std::uint64_t dispatches_ = 0;
};

PlanWork::PlanWork(const Plan& plan, const Target& target, unsigned most, std::span<const unsigned> parts,
                   const std::function<std::byte*(std::size_t)>& at,
                   const std::function<bool(std::size_t)>& is_left_out) {
    const TaskMaker maker(plan, target, at);
    for (const Step& step : plan.steps) {
        if (const auto* const wavefront = std::get_if<Wavefront>(&step)) {
            auto lanes = std::make_unique<Lanes>(*wavefront, maker, parts.front());
            parts = parts.subspan(1);
            threads_ = most;
            dispatches_ += lanes->dispatches();
            steps_.emplace_back(std::move(lanes));
        } else if (const auto* const dispatch = std::get_if<Dispatch>(&step)) {
            if (is_left_out(dispatch->fills)) continue;
            Task task = maker.make(*dispatch);
            threads_ = std::max(threads_, task.kernel->threads(task.bytes_of_work(), task.constants, most));
            ++dispatches_;
            steps_.emplace_back(std::move(task));
        }
    }
}

PlanWork::~PlanWork() = default;

void PlanWork::run(const Poll& poll) {
    run_on_team(threads_, poll, [&](Member& member) {
        for (const auto& step : steps_) {
            const auto* const task = std::get_if<Task>(&step);
            if (!(task != nullptr ? run_task(*task, member) : std::get<std::unique_ptr<Lanes>>(step)->run(member)))
                return;
        }
    });
}

TeamDivision divide_team(const Plan& plan, const Target& target, unsigned threads) {
    // What wavefronts take, at most, of the time of one layer after the other.
    constexpr double kMostTime = 0.9;
    TeamDivision division;
    double at_once = kThread * (threads - 1), in_turn = 0;
    for (const Step& step : plan.steps) {
        const auto* const wavefront = std::get_if<Wavefront>(&step);
        if (wavefront == nullptr) continue;
        const LoopTimes times(plan, *wavefront, target);
        const unsigned most = std::min(threads, static_cast<unsigned>(wavefront->lanes.size()));
        unsigned best = most;
        double least = times.at_once(threads, most);
        for (unsigned parts = most - 1; parts > 1; --parts)
            if (const double time = times.at_once(threads, parts); time < least) {
                least = time;
                best = parts;
            }
        division.parts.push_back(best);
        at_once += least;
        in_turn += times.in_turn(threads);
    }
    division.gains = threads > 1 && !contended() && at_once < kMostTime * in_turn;
    return division;
}

}  // namespace vkrnn::cpu
