#include "cpu/run/plan_work.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

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

// Returns the estimated nanoseconds of a piece's time loop on some threads. The lengths of a call are not considered.
double loop_time(const Plan& plan, const Wavefront::Piece& piece, const Target& target, unsigned threads) {
    double sum = 0;
    for (const auto& step : piece) {
        const auto& dispatch = std::get<Dispatch>(step);
        const Kernel& kernel = plan.kernels[dispatch.kernel];
        const NamedKernel& named = find_kernel(target, kernel.shader);
        if (named.time == nullptr) continue;
        LoopWork work;
        std::memcpy(&work, dispatch.push.bytes.data(), sizeof(work));
        work.has_lengths = 0;
        sum += named.time(reinterpret_cast<const std::byte*>(&work), kernel.constants.data(), threads);
    }
    return sum;
}

// Returns into how many parts a team is divided for a wavefront. Each part runs one lane at a time.
unsigned parts_of(const Wavefront& wavefront, unsigned threads) {
    return std::min(threads, static_cast<unsigned>(wavefront.lanes.size()));
}

}  // namespace

// The lanes of a wavefront. Parts of a team run them at the same time.
class Lanes {
public:
    Lanes(const Wavefront& wavefront, const TaskMaker& maker, unsigned most)
        : pieces_(wavefront.lanes.size(), wavefront.lanes.front().size()), taken_(parts_of(wavefront, most)) {
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

    std::vector<std::vector<std::vector<Task>>> lanes_{};  // by lane and piece
    Pieces pieces_;
    std::vector<Taken> taken_;  // by part
    std::uint64_t dispatches_ = 0;
};

PlanWork::PlanWork(const Plan& plan, const Target& target, unsigned most,
                   const std::function<std::byte*(std::size_t)>& at,
                   const std::function<bool(std::size_t)>& is_left_out) {
    const TaskMaker maker(plan, target, at);
    for (const Step& step : plan.steps) {
        if (const auto* const wavefront = std::get_if<Wavefront>(&step)) {
            auto lanes = std::make_unique<Lanes>(*wavefront, maker, most);
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

bool wavefronts_gain(const Plan& plan, const Target& target, unsigned threads) {
    // What wavefronts take, at most, of the time of one layer after the other.
    constexpr double kMostTime = 0.9;
    constexpr double kPiece = 400;  // nanoseconds to prepare a piece, and to take it
    if (threads == 1 || contended()) return false;
    double at_once = 0, in_turn = 0;
    for (const Step& step : plan.steps) {
        const auto* const wavefront = std::get_if<Wavefront>(&step);
        if (wavefront == nullptr) continue;
        const unsigned parts = parts_of(*wavefront, threads);
        const auto pieces = static_cast<double>(wavefront->lanes.front().size());
        double sum = 0, longest = 0;
        for (const Wavefront::Lane& lane : wavefront->lanes) {  // the first piece has as many steps as the others
            in_turn += pieces * loop_time(plan, lane.front(), target, threads);
            const double time = loop_time(plan, lane.front(), target, threads / parts);
            sum += time;
            longest = std::max(longest, time);
        }
        const auto lanes = static_cast<double>(wavefront->lanes.size());
        at_once += pieces * std::max(sum / parts, longest) + (parts - 1) * longest + kPiece * lanes * pieces;
    }
    return at_once + kThread * (threads - 1) < kMostTime * in_turn;
}

}  // namespace vkrnn::cpu
