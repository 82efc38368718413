#include "cpu/run/plan_work.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "cpu/run/lanes.h"
#include "cpu/threads/team.h"
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
    [[nodiscard]] std::vector<Task> make(const Sequence& piece) const {
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

LaneTimes times_of(const Plan& plan, const Wavefront& wavefront, const Target& target) {
    LaneTimes times(wavefront.lanes.front().pieces.size());
    for (const Wavefront::Lane& lane : wavefront.lanes)
        for (const auto& step : lane.pieces.front()) {  // all pieces but the last one have as many steps
            const auto& dispatch = std::get<Dispatch>(step);
            const Kernel& kernel = plan.kernels[dispatch.kernel];
            const NamedKernel& named = find_kernel(target, kernel.shader);
            if (named.time == nullptr) continue;
            LoopWork work{};
            std::memcpy(&work, dispatch.push.bytes.data(), sizeof(work));
            times.add(named, kernel.constants.data(), work);
        }
    return times;
}

}  // namespace

PlanWork::PlanWork(const Plan& plan, const Target& target, unsigned most, std::span<const unsigned> parts,
                   const std::function<std::byte*(std::size_t)>& at,
                   const std::function<bool(std::size_t)>& is_left_out) {
    const TaskMaker maker(plan, target, at);
    for (const Step& step : plan.steps) {
        if (const auto* const wavefront = std::get_if<Wavefront>(&step)) {
            std::vector<std::vector<std::vector<Task>>> tasks;  // by lane and piece
            for (const Wavefront::Lane& lane : wavefront->lanes) {
                tasks.emplace_back();
                for (const Sequence& piece : lane.pieces) {
                    tasks.back().push_back(maker.make(piece));
                    dispatches_ += piece.size();
                }
            }
            const std::size_t lanes = tasks.size(), pieces = tasks.front().size();
            const auto work = [tasks = std::move(tasks)](Member& member, const Pieces::Piece& piece) {
                return std::ranges::all_of(tasks[piece.lane][piece.number],
                                           [&](const Task& task) { return run_task(task, member); });
            };
            steps_.emplace_back(std::make_unique<Lanes>(lanes, pieces, parts.front(), work));
            parts = parts.subspan(1);
            threads_ = most;
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
    TeamDivision division;
    double at_once = kThread * (threads - 1), in_turn = 0;
    for (const Step& step : plan.steps) {
        const auto* const wavefront = std::get_if<Wavefront>(&step);
        if (wavefront == nullptr) continue;
        const LaneTimes times = times_of(plan, *wavefront, target);
        const auto [parts, nanoseconds] = times.best_division(threads, static_cast<unsigned>(wavefront->lanes.size()));
        division.parts.push_back(parts);
        at_once += nanoseconds;
        in_turn += times.in_turn(threads);
    }
    division.gains = threads > 1 && !contended() && at_once < kMostWavefrontTime * in_turn;
    return division;
}

}  // namespace vkrnn::cpu
