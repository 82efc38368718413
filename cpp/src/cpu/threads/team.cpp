#include "cpu/threads/team.h"

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/system.h"
#include "cpu/threads/contention.h"
#include "cpu/threads/floating_point.h"
#include "cpu/threads/spin.h"
#include "cpu/threads/thread_pool.h"
#include "vkrnn/error.h"
#include "vkrnn/openmp.h"
#include "vkrnn/poll_interval.h"

namespace vkrnn::cpu {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// The minimum time that threads spin at a barrier before they sleep. It is longer under contention within the process:
// waking a thread on an occupied processor takes long, and the members that wait for it meanwhile would sleep, too.
constexpr auto kSpinAtBarrier = 20us, kSpinBesideOwn = 100us;
// Reads of the barrier's word before that, without a pause and without reading the clock.
constexpr int kLooks = 100;
// How long contention is remembered: calls then run on OpenMP threads, or assume that the process's own threads use the
// processors.
constexpr auto kFallbackPeriod = 1200ms;
// A wait at a barrier is lost time if it takes longer than this and longer than half of the work before it. The limit
// is higher between two kernels, where a thread may have more to do than another, or may have been asleep when the call
// began.
constexpr auto kLost = 60us, kLostBetweenKernels = 200us;

// The nesting depth of calls on this thread. A call's poll runs signal handlers, which may make another call.
thread_local std::size_t call_depth = 0;
struct NestedCall {
    NestedCall() { ++call_depth; }
    ~NestedCall() { --call_depth; }
    NestedCall(const NestedCall&) = delete;
    NestedCall& operator=(const NestedCall&) = delete;
};

}  // namespace

class Team {
public:
    // `allowed`: how many threads the call could have had, at least `size`.
    Team(unsigned size, unsigned allowed, const std::function<bool()>& poll, Contention& contention = pool_contention)
        : size_(size), allowed_(allowed), poll_(poll), barriers_(size + 1), contention_(contention) {}

    [[nodiscard]] unsigned size() const { return size_; }
    [[nodiscard]] bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
    [[nodiscard]] Barrier& barrier(unsigned which) { return barriers_[which]; }
    [[nodiscard]] bool contended() const { return contended_; }
    [[nodiscard]] Clock::duration spin() const { return own_ ? kSpinBesideOwn : kSpinAtBarrier; }

    // Called at a barrier during a call, which has lost this much of the time `taken`. Returns whether other software
    // must be using the processors. Begins a back-off period if so.
    bool backs_off(Clock::duration lost, Clock::duration taken) {
        if (own_ || !contention_.shows(lost, taken)) return false;
        own_ = !begins_back_off(taken, system::process_time() - process_time_);
        return !own_;
    }

    // Returns whether this is a child process that the poll forked. It has only the calling thread.
    [[nodiscard]] bool forked() const { return forks() != forks_; }
    [[nodiscard]] bool lacks_members() const { return size_ > 1 && forked(); }

    void stop() {
        stopped_ = true;
        for (Barrier& barrier : barriers_) {
            barrier.round_.fetch_or(Barrier::kStopped);
            system::wake_all(barrier.round_);
        }
    }

    // Called by the first member.
    void poll() {
        if (!poll_) return;
        const auto now = Clock::now();
        if (now - polled_ < poll_interval.load()) return;
        polled_ = now;
        if (stopped()) return;
        const NestedCall nested;
        if (poll_()) {
            interrupted_ = true;
            stop();
        }
        rested_ += Clock::now() - now;
        if (lacks_members()) stop();
    }

    // Called by the first member when it has slept at a barrier for this time.
    void rested(Clock::duration time) { rested_ += time; }

    void fail(std::exception_ptr error) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::move(error);
        stop();
    }

    void work(const std::function<void(Member&)>& body, unsigned rank) noexcept {
        Member member(*this, rank);
        try {
            std::optional<WithFloatModes> of_the_caller;
            if (rank != 0) of_the_caller.emplace(float_modes_);
            const Clock::duration before = contended_ && rank != 0 ? system::thread_time() : Clock::duration::zero();
            body(member);
            if (contended_ && rank != 0) used_by_rest_.fetch_add((system::thread_time() - before).count());
        } catch (...) {
            fail(std::current_exception());
        }
    }

    // Called when all members have come back. All members use barrier 0, which separates kernels. The other barriers
    // are used by some of the members at the same time. So the call lost the time of barrier 0 plus the longest of the
    // others, plus the time in which the first member needed a processor and had none.
    void account() const {
        const Clock::time_point now = Clock::now();
        const Clock::duration taken = now - began_,
                              used = size_ > 1 || contended_ ? system::thread_time() - cpu_time_ : taken;
        if (contended_) {
            const Clock::duration by_team = used + Clock::duration(used_by_rest_.load());
            contention_.add_others(system::process_time() - process_time_ - by_team, taken, now);
        }
        if (size_ == 1) return;
        Clock::duration lost{0};
        for (std::size_t i = 1; i < barriers_.size(); ++i) lost = std::max(lost, barriers_[i].lost_);
        lost += barriers_[0].lost_;
        lost += std::max(taken - used - rested_, Clock::duration::zero());
        contention_.add(lost, taken, system::process_time() - process_time_, now);
        if (contention_.shows({}, {})) begins_back_off({}, {});
    }

    void rethrow() const {
        if (lacks_members()) {
            if (interrupted_) throw Interrupted();
            throw Forked();
        }
        if (error_) std::rethrow_exception(error_);
        if (interrupted_) throw Interrupted();
    }

private:
    // Called when there is contention. Begins a back-off period and returns true, except if only threads of the process
    // itself compete with a team of the pool that may use all processors: run_on_team() then gives each thread a
    // processor of its own. `taken` and `used` are those of the current call, or 0 if add() has counted it already.
    bool begins_back_off(Clock::duration taken, Clock::duration used) const {
        const Clock::time_point now = Clock::now();
        const bool can_be_apart = &contention_ == &pool_contention && fills_processors(allowed_);
        if (can_be_apart && contention_.is_own(used, taken, allowed_)) {
            contention_.note_own(now);
            return false;
        }
        contention_.begin(now);
        return true;
    }

    const unsigned size_, allowed_;
    const std::function<bool()>& poll_;
    std::vector<Barrier> barriers_;
    Contention& contention_;
    const bool contended_ = contention_.holds();
    // Whether the process's own threads occupy the processors.
    std::atomic<bool> own_ = size_ > 1 && contention_.own_within(kFallbackPeriod);
    const unsigned forks_ = forks();
    const FloatModes float_modes_ = cpu::float_modes();
    std::atomic<bool> stopped_ = false;
    bool interrupted_ = false;
    const Clock::time_point began_ = Clock::now();
    const Clock::duration cpu_time_ = size_ > 1 || contended_ ? system::thread_time() : Clock::duration::zero();
    const Clock::duration process_time_ = size_ > 1 || contended_ ? system::process_time() : Clock::duration::zero();
    std::atomic<Clock::rep> used_by_rest_ = 0;  // processor time of all members but the first
    Clock::duration rested_{0};                 // time in which the first member needed no processor
    Clock::time_point polled_ = began_;
    std::mutex mutex_;
    std::exception_ptr error_;
};

namespace {

// Returns the OpenMP library whose threads should run calls while threads of the pool lose time. Its threads may be
// those that occupy the processors, because they spin after PyTorch's work, for example; they begin new work at once.
// Returns null if they have not worked since the last call, or have themselves lost much time recently.
const OpenMP* openmp_fallback() {
    if (!pool_contention.felt_within(kFallbackPeriod) || openmp_contention.holds()) return nullptr;
    const OpenMP* const loaded = OpenMP::loaded();
    return loaded != nullptr && loaded->max_threads() > 1 && loaded->has_worked() ? loaded : nullptr;
}

}  // namespace

bool contended() {
    if (OpenMP::current() != nullptr) return openmp_contention.holds();
    return pool_contention.holds() && openmp_fallback() == nullptr;
}

Member::Member(Team& team, unsigned rank) : team_(team), rank_(rank), size_(team.size()) {}

Member Member::in_part(unsigned first, unsigned size) const {
    Member member(*this);
    member.first_ = first;
    member.size_ = size;
    // Kernels on n > 1 threads use barriers 0 to n / 2 (see run_groups in loop-inl.h), so those of the parts are apart.
    member.first_barrier_ = 1 + first;
    return member;
}

void Signal::notify() {
    word_.fetch_add(1);
    if (sleepers_.load() != 0) system::wake_all(word_);
}

bool Member::wait(Signal& signal, const std::function<bool()>& holds, Clock::duration spin) {
    const auto over = [&] { return team_.stopped() || holds(); };
    const Clock::duration limit = std::max<Clock::duration>(spin, team_.spin());
    if (!spin_until(over, limit)) {
        const auto slept = Clock::now();
        signal.sleepers_.fetch_add(1);
        for (;;) {
            const std::uint32_t word = signal.word_.load();
            if (over()) break;
            system::sleep_while(signal.word_, word, poll_interval);
            if (rank_ == 0) team_.poll();
        }
        signal.sleepers_.fetch_sub(1);
        if (rank_ == 0) team_.rested(Clock::now() - slept);
    }
    return !stopped();
}

bool Member::contended() const { return team_.contended(); }

bool Member::stopped() {
    if (rank_ == 0 && ++asked_ % 4 == 0) team_.poll();
    return team_.stopped();
}

void* Member::scratch(std::size_t number, std::size_t bytes) const {
    struct Buffer {
        void* memory = nullptr;
        std::size_t size = 0;
        ~Buffer() { system::free_memory(memory); }
    };
    static thread_local std::deque<std::array<Buffer, kScratchBuffers>>
        buffers;  // one element for each level of nested calls
    while (buffers.size() <= call_depth) buffers.emplace_back();
    Buffer& buffer = buffers[call_depth][number];
    if (buffer.size < bytes) {
        system::free_memory(buffer.memory);
        buffer = {};
        buffer.size = (bytes + 4095) / 4096 * 4096;
        buffer.memory = system::allocate_memory(4096, buffer.size);
        if (buffer.memory == nullptr) {
            buffer.size = 0;
            throw std::bad_alloc();
        }
    }
    return buffer.memory;
}

std::uint32_t Barrier::arrive(unsigned members) {
    const std::uint32_t round = round_.load() & ~kStopped;  // the round cannot end before this member arrives
    if (arrived_.fetch_add(1) + 1 == members) {
        arrived_.store(0, std::memory_order_relaxed);
        round_.fetch_add(kRound);
        if (sleepers_.load() != 0) system::wake_all(round_);
    }
    return round;
}

void Barrier::record_wait(Clock::time_point arrival, Clock::duration usual) {
    seen_ = Clock::now();
    unseen_ = 0;
    if (seen_ - arrival > usual) lost_ += seen_ - arrival;
}

void Barrier::start_round(bool may_split, Team& team) {
    const bool parts = may_split && team.backs_off(lost_, seen_ - began_);
    const std::uint32_t ends_after = parts ? rounds_ * kRound : kNoRound;
    if (ends_after_.load(std::memory_order_relaxed) != ends_after)
        ends_after_.store(ends_after, std::memory_order_relaxed);
    if (parts) {
        began_ = Clock::now();
        lost_ = {};
    }
    ++rounds_;
    ++unseen_;
}

unsigned Member::barrier(unsigned which, unsigned own, unsigned members, bool may_split) {
    if (members == 1) return stopped() ? 0 : 1;
    Barrier& barrier = team_.barrier(first_barrier_ + which);
    const bool first = own == 0;
    if (first) barrier.start_round(may_split, team_);
    const std::uint32_t round = barrier.arrive(members);
    const auto ended = [&] { return barrier.round_.load(std::memory_order_acquire) != round; };  // or stopped
    bool over = false;
    for (int i = 0; i < kLooks && !over; ++i) over = ended();
    if (!over) {
        const auto arrival = Clock::now();
        const auto worked = first ? (arrival - barrier.seen_) / barrier.unseen_ : Clock::duration::zero();
        const auto limit = std::max<Clock::duration>(team_.spin(), std::min<Clock::duration>(worked / 4, 200us));
        if (!spin_until(ended, limit)) {
            barrier.sleepers_.fetch_add(1);
            while (!ended()) {
                system::sleep_while(barrier.round_, round, poll_interval);
                if (rank_ == 0) team_.poll();
            }
            barrier.sleepers_.fetch_sub(1);
            if (rank_ == 0) team_.rested(Clock::now() - arrival - limit);
        }
        if (first)
            barrier.record_wait(arrival, which == 0 ? std::max<Clock::duration>(kLostBetweenKernels, worked)
                                                    : std::max<Clock::duration>(kLost, worked / 2));
    }
    if (stopped()) return 0;
    return barrier.ends_after_.load(std::memory_order_relaxed) == round ? 1 : members;
}

namespace {

// Returns false if the work cannot run on the OpenMP library's threads.
bool run_on_openmp(const OpenMP& openmp, unsigned wanted, const std::function<bool()>& poll,
                   const std::function<void(Member&)>& work) {
    Pool& own = pool();
    const unsigned allowed = allowed_threads(), threads = std::min({wanted, allowed, openmp.max_threads()});
    if (threads == 1) return false;
    Team team(threads, allowed, poll, openmp_contention);
    if (!own.enter(threads, allowed)) return false;
    bool run = true;
    try {
        run = openmp.run(threads, [&](unsigned rank) {
            team.work(work, rank);
            // At the end of the region, a forked child would wait for threads that it does not have.
            if (rank == 0 && team.forked()) throw Forked();
        });
    } catch (const Forked&) {
        team.rethrow();
        return true;
    }
    own.leave(threads);
    if (!run) return false;
    team.account();
    team.rethrow();
    return true;
}

}  // namespace

void run_on_team(unsigned wanted, const std::function<bool()>& poll, const std::function<void(Member&)>& work) {
    const OpenMP* openmp = wanted > 1 ? OpenMP::current() : nullptr;
    if (openmp == nullptr && wanted > 1) openmp = openmp_fallback();
    if (openmp != nullptr && run_on_openmp(*openmp, wanted, poll, work)) return;
    const unsigned allowed = wanted > 1 ? allowed_threads() : 1;
    // Threads that wait for each other in every step must not share a processor with each other as well.
    const bool apart = wanted > 1 && pool_contention.own_within(kFallbackPeriod) && fills_processors(allowed);
    const Taken taken(pool(), wanted - 1, allowed, apart);
    const std::vector<Worker*>& workers = taken.workers();
    Team team(static_cast<unsigned>(workers.size()) + 1, allowed, poll);
    const std::function<void(unsigned)> part = [&](unsigned rank) { team.work(work, rank); };
    for (unsigned i = 0; i < workers.size(); ++i) workers[i]->give(part, i + 1);
    part(0);
    const auto poll_until_forked = [&] {
        team.poll();
        return !team.forked();
    };
    for (Worker* worker : workers)
        if (!team.forked()) worker->wait(poll_until_forked);
    if (!team.forked()) team.account();
    OpenMP::forget_work();
    team.rethrow();
}

Solo::Solo() : team_(std::make_unique<Team>(1, 1, no_poll_)), member_(*team_, 0) {}

Solo::~Solo() = default;

std::size_t idle_threads() { return pool().idle(); }

}  // namespace vkrnn::cpu
