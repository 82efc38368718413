#include "compiler.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <variant>

#include "environment.h"

namespace vkrnn::vk {
namespace {

using namespace std::chrono_literals;

// Calls that take longer without helpers than the helpers' kernels take to compile, about.
constexpr double kWorthWaiting = 1e10;  // floating-point operations
// Milliseconds. Machine code that is in the driver's cache is there sooner.
constexpr int kSoon = 10;
// A first call is often followed by another that has kernels to compile, of gradients, and then helpers had better not
// be busy.
constexpr auto kMayFollow = 100ms;

// What a helper that is prepared for the plan lacks of its part of it.
std::vector<std::size_t> lacking(const Member& helper, const Plan& plan) {
    std::vector<bool> shared(plan.kernels.size(), false);
    const auto see = [&](const Dispatch& dispatch) {
        shared.at(dispatch.kernel) = shared.at(dispatch.kernel) || worth_sharing(dispatch);
    };
    for (const Step& step : plan.steps) {
        if (const auto* dispatch = std::get_if<Dispatch>(&step)) {
            see(*dispatch);
        } else if (const auto* loop = std::get_if<Loop>(&step)) {
            std::for_each(loop->body.begin(), loop->body.end(), see);
        }
    }
    std::vector<std::size_t> found = helper.missing();
    std::erase_if(found, [&](std::size_t kernel) { return !shared[kernel]; });
    return found;
}

// Numbers below a limit, handed out to threads.
class Turns {
public:
    explicit Turns(std::size_t count) : count_(count) {}
    template <class Work>
    void take_all(const Work& work) {
        for (std::size_t turn = next_++; turn < count_; turn = next_++) {
            work(turn);
        }
    }
    void drop() { next_ = count_; }
    // Returns when somebody has one that takes long, or none is left.
    void wait_for_a_long_one() const {
        for (int unchanged = 0; next_ < count_ && unchanged < kSoon;) {
            const std::size_t before = next_;
            std::this_thread::sleep_for(1ms);
            unchanged = next_ == before ? unchanged + 1 : 0;
        }
    }

private:
    std::size_t count_;
    std::atomic<std::size_t> next_ = 0;
};

// Does the work with the number of each member, in threads of their own but for the first. Where that fails no turns
// are left to the others, which are waited for.
void for_each_member(std::size_t members, Turns& turns, const std::function<void(std::size_t)>& work) {
    std::vector<std::future<void>> others;
    for (std::size_t i = 1; i < members; ++i) {
        others.push_back(std::async(std::launch::async, work, i));
    }
    try {
        work(0);
    } catch (...) {
        turns.drop();
        throw;
    }
    for (auto& each : others) {
        each.get();
    }
}

}  // namespace

bool patience_wanted() { return is_on("VKRNN_WAIT_FOR_HELPERS"); }

Compiler::Compiler(std::span<Member> members, bool patient)
    : members_(members), patient_(patient), followers_(members.size()) {}

Compiler::~Compiler() {
    stop_.request_stop();
    for (auto& each : followers_) {
        if (each.valid()) {
            each.wait();
        }
    }
}

bool Compiler::helpers_ready() {
    const auto busy = [](const std::future<void>& each) {
        return each.valid() && each.wait_for(0s) != std::future_status::ready;
    };
    if (!pending_.empty() && std::none_of(followers_.begin(), followers_.end(), busy)) {
        pending_.clear();
        for (std::size_t i = 0; i < members_.size(); ++i) {
            join(i);
        }
    }
    return pending_.empty();
}

bool Compiler::compile(const std::shared_ptr<const Plan>& plan, const Poll& poll) {
    members_.front().prepare(plan->kernels);
    std::vector<std::size_t> missing = members_.front().missing();
    if (members_.size() == 1) {
        members_.front().compile(missing);
        return true;
    }
    if (!missing.empty()) {
        stop_.request_stop();
        pending_.push_back(plan);
        // A plan's last kernels, its time loop's, take longest and so come first.
        std::ranges::reverse(missing);
        compile_missing(*plan, missing, patient_ || plan->flops >= kWorthWaiting, poll);
    }
    const bool ready = helpers_ready();
    for (std::size_t i = 1; ready && i < members_.size(); ++i) {
        members_[i].prepare(plan->kernels);
    }
    return ready;
}

void Compiler::compile_missing(const Plan& plan, std::span<const std::size_t> missing, bool for_helpers,
                               const Poll& poll) {
    Turns passes(missing.size());
    for_each_member(members_.size(), passes, [&](std::size_t i) {
        join(i);
        if (!for_helpers) {
            passes.take_all([&](std::size_t turn) { members_.front().compile(missing.subspan(turn, 1)); });
        } else if (i == 0) {
            members_.front().compile(missing);
        } else {
            for (const auto& each : pending_) {
                members_[i].prepare(each->kernels);
                members_[i].compile(lacking(members_[i], *each));
            }
        }
    });
    Turns code(missing.size());
    for_each_member(members_.size(), code, [&](std::size_t i) {
        if (i > 0) {
            members_[i].prepare(plan.kernels);
            if (!for_helpers) {
                code.wait_for_a_long_one();
            }
        }
        code.take_all([&](std::size_t turn) { members_[i].warm_up(missing[turn], i == 0 ? poll : Poll()); });
    });
    if (for_helpers) {
        pending_.clear();
    } else {
        follow();
    }
}

// Has helpers compile what they lack, while calls go on without them.
void Compiler::follow() {
    stop_ = {};
    const auto catch_up = [](Member& helper, const std::vector<std::shared_ptr<const Plan>>& plans,
                             const std::stop_token& stop) {
        std::mutex mutex;
        std::unique_lock lock(mutex);
        std::condition_variable_any().wait_for(lock, stop, kMayFollow, [] { return false; });
        for (const auto& plan : plans) {
            helper.prepare(plan->kernels);
            for (const std::size_t kernel : lacking(helper, *plan)) {
                if (stop.stop_requested()) {
                    return;
                }
                helper.warm_up(kernel, {});
            }
        }
    };
    for (std::size_t i = 1; i < members_.size(); ++i) {
        followers_[i] = std::async(std::launch::async, catch_up, std::ref(members_[i]), pending_, stop_.get_token());
    }
}

void Compiler::join(std::size_t member) {
    if (followers_[member].valid()) {
        followers_[member].get();
    }
}

}  // namespace vkrnn::vk
