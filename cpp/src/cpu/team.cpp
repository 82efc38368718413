#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <csignal>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "contention.h"
#include "sleep.h"
#include "vkrnn/error.h"
#include "vkrnn/openmp.h"

namespace vkrnn::cpu {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// How long threads spin before they sleep: for work to come, which wakes a sleeping thread only after a while, and in a
// meeting at the least.
constexpr auto kSpinForWork = 100us;
constexpr auto kSpinInMeeting = 20us;
// What comes before that spinning: looks without a pause, or at the clock, in between.
constexpr int kLooks = 100;
// Between questions whether to stop.
constexpr auto kBetweenPolls = 20ms;
// Waiting in a meeting that takes longer than this and than half of the work before it is lost time. Between two
// kernels a thread may have more to do than another one, or have slept as the call began.
constexpr auto kLost = 60us, kLostBetweenKernels = 200us;

// The calls that the thread is amid: their polls run signal handlers, which may make another one.
thread_local std::size_t calls_around = 0;
struct Amid {
    Amid() { ++calls_around; }
    ~Amid() { --calls_around; }
    Amid(const Amid&) = delete;
    Amid& operator=(const Amid&) = delete;
};

}  // namespace

class Team {
public:
    Team(unsigned size, const std::function<bool()>& poll) : size_(size), poll_(poll), meetings_(size + 1) {}

    [[nodiscard]] unsigned size() const { return size_; }
    [[nodiscard]] bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
    [[nodiscard]] Meeting& meeting(unsigned which) { return meetings_[which]; }
    [[nodiscard]] bool contended() const { return contended_; }

    void stop() {
        stopped_ = true;
        for (Meeting& meeting : meetings_) {
            meeting.round_.fetch_or(Meeting::kStopped);
            wake_all(meeting.round_);
        }
    }

    // For the first member.
    void poll() {
        const auto now = Clock::now();
        if (now - polled_ < kBetweenPolls) return;
        polled_ = now;
        if (!poll_ || stopped()) return;
        const Amid amid;
        if (poll_()) {
            interrupted_ = true;
            stop();
        }
    }

    void fail(std::exception_ptr error) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::move(error);
        stop();
    }

    void work(const std::function<void(Member&)>& body, unsigned rank) noexcept {
        Member member(*this, rank);
        try {
            body(member);
        } catch (...) {
            fail(std::current_exception());
        }
    }

    // To be called when all have come back. All meet at the first meeting between two kernels and after the last one,
    // and some at a time in the others, beside each other: then the call has lost what those lost who lost the most.
    void account() const {
        if (size_ == 1) return;
        Clock::duration lost{0};
        for (std::size_t i = 1; i < meetings_.size(); ++i) lost = std::max(lost, meetings_[i].lost_);
        lost += meetings_[0].lost_;
        const Clock::time_point now = Clock::now();
        contention.add(lost, now - meetings_[0].began_);
        if (contention.shows({}, {})) contention.begin(now);
    }

    void rethrow() const {
        if (error_) std::rethrow_exception(error_);
        if (interrupted_) throw Interrupted();
    }

private:
    const unsigned size_;
    const std::function<bool()>& poll_;
    std::vector<Meeting> meetings_;
    const bool contended_ = contention.holds();
    std::atomic<bool> stopped_ = false;
    bool interrupted_ = false;
    Clock::time_point polled_ = Clock::now();
    std::mutex mutex_;
    std::exception_ptr error_;
};

namespace {

// A thread that waits for work. It lives as long as the process: a team's last word to it must find it there.
struct Worker {
    std::atomic<std::uint32_t> turn = 0, done = 0;  // the work that it was given last, and that it has finished
    std::atomic<std::uint32_t> sleeps = 0, waited_for = 0;
    Team* team = nullptr;
    const std::function<void(Member&)>* work = nullptr;
    unsigned rank = 0;
    pthread_t handle{};
    cpu_set_t affinity{};

    void run() {
        for (std::uint32_t last = 0;; ++last) {
            if (!spin_until([&] { return turn.load(std::memory_order_acquire) != last; },
                            contention.holds() ? Clock::duration::zero() : kSpinForWork)) {
                sleeps = 1;
                while (turn.load() == last) sleep_while(turn, last, 1h);
                sleeps = 0;
            }
            team->work(*work, rank);
            done.store(last + 1);
            if (waited_for.load() != 0) wake_all(done);
        }
    }

    void give(Team& to, const std::function<void(Member&)>& what, unsigned as) {
        team = &to;
        work = &what;
        rank = as;
        turn.fetch_add(1);
        if (sleeps.load() != 0) wake_all(turn);
    }

    void wait(Team& from) {
        const std::uint32_t wanted = turn.load();
        if (spin_until([&] { return done.load(std::memory_order_acquire) == wanted; }, kSpinInMeeting)) return;
        waited_for = 1;
        for (std::uint32_t seen = done.load(); seen != wanted; seen = done.load()) {
            sleep_while(done, seen, kBetweenPolls);
            from.poll();
        }
        waited_for = 0;
    }
};

class Pool {
public:
    // Up to `wanted` workers, fewer where threads of the process are busy already or cannot be made. Nothing has been
    // taken if it throws.
    std::vector<Worker*> take(unsigned wanted, unsigned allowed) {
        const std::lock_guard lock(mutex_);
        const unsigned room = allowed > running_ + 1 ? allowed - running_ - 1 : 0;
        std::vector<Worker*> taken;
        taken.reserve(std::min(wanted, room));
        ++running_;
        while (taken.size() < std::min(wanted, room)) {
            if (idle_.empty() && !make()) break;
            taken.push_back(idle_.back());
            idle_.pop_back();
        }
        follow_affinity(taken);
        running_ += static_cast<unsigned>(taken.size());
        return taken;
    }

    // Whether there is room for so many threads that are not of the pool; they count until leave().
    bool enter(unsigned threads, unsigned allowed) {
        const std::lock_guard lock(mutex_);
        if (running_ + threads > allowed) return false;
        running_ += threads;
        return true;
    }
    void leave(unsigned threads) {
        const std::lock_guard lock(mutex_);
        running_ -= threads;
    }

    // Does not allocate memory: there is room for all workers.
    void give_back(const std::vector<Worker*>& workers) noexcept {
        const std::lock_guard lock(mutex_);
        running_ -= 1 + static_cast<unsigned>(workers.size());
        // The one that was taken first comes first again: its caches know the work.
        idle_.insert(idle_.end(), workers.rbegin(), workers.rend());
    }

    std::size_t idle() {
        const std::lock_guard lock(mutex_);
        return idle_.size();
    }

private:
    bool make() noexcept try {
        auto worker = std::make_unique<Worker>();
        if (idle_.capacity() == made_) idle_.reserve(2 * made_ + 8);
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        const auto body = [](void* self) -> void* {
            static_cast<Worker*>(self)->run();
            return nullptr;
        };
        // Signals are for the threads that the program knows.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        const int failed = pthread_create(&worker->handle, &attributes, body, worker.get());
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        pthread_attr_destroy(&attributes);
        if (failed != 0) return false;
        sched_getaffinity(0, sizeof worker->affinity, &worker->affinity);
        idle_.push_back(worker.release());
        ++made_;
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }

    // Threads keep to the processors that the calling one may use now.
    static void follow_affinity(const std::vector<Worker*>& workers) {
        if (workers.empty()) return;
        cpu_set_t now;
        if (sched_getaffinity(0, sizeof now, &now) != 0) return;
        for (Worker* worker : workers) {
            if (CPU_EQUAL(&worker->affinity, &now)) continue;
            if (pthread_setaffinity_np(worker->handle, sizeof now, &now) == 0) worker->affinity = now;
        }
    }

    std::mutex mutex_;
    std::vector<Worker*> idle_;
    std::size_t made_ = 0;
    unsigned running_ = 0;  // threads that run calls, of the pool or not
};

// Workers for as long as the object lives.
class Taken {
public:
    Taken(Pool& from, unsigned wanted, unsigned allowed) : from_(from), workers_(from.take(wanted, allowed)) {}
    ~Taken() { from_.give_back(workers_); }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

    [[nodiscard]] const std::vector<Worker*>& workers() const { return workers_; }

private:
    Pool& from_;
    const std::vector<Worker*> workers_;
};

// Never destroyed: threads wait in it until the process ends. After a fork the child has none of them, and a new pool.
// Made when the library is loaded: a process that is forked while a thread makes it would wait for that for ever.
std::atomic<Pool*> current_pool = new Pool;  // NOLINT(cppcoreguidelines-owning-memory)
[[maybe_unused]] const int new_pool_after_a_fork =
    pthread_atfork(nullptr, nullptr, [] { current_pool = new Pool; });  // NOLINT(cppcoreguidelines-owning-memory)

Pool& pool() { return *current_pool; }

}  // namespace

bool contended() { return contention.holds(); }

unsigned Member::size() const { return team_.size(); }

bool Member::contended() const { return team_.contended(); }

bool Member::stopped() {
    if (rank_ == 0 && ++asked_ % 4 == 0) team_.poll();
    return team_.stopped();
}

void* Member::scratch(std::size_t number, std::size_t bytes) const {
    struct Buffer {
        void* memory = nullptr;
        std::size_t size = 0;
        ~Buffer() { std::free(memory); }  // NOLINT(cppcoreguidelines-no-malloc)
    };
    static thread_local std::deque<std::array<Buffer, 4>> buffers;  // for a call, for one amid that, and so on
    while (buffers.size() <= calls_around) buffers.emplace_back();
    Buffer& buffer = buffers[calls_around][number];
    if (buffer.size < bytes) {
        std::free(buffer.memory);  // NOLINT(cppcoreguidelines-no-malloc)
        buffer = {};
        buffer.size = (bytes + 4095) / 4096 * 4096;
        buffer.memory = std::aligned_alloc(4096, buffer.size);  // NOLINT(cppcoreguidelines-no-malloc)
        if (buffer.memory == nullptr) {
            buffer.size = 0;
            throw std::bad_alloc();
        }
    }
    return buffer.memory;
}

std::uint32_t Meeting::arrive(unsigned members) {
    const std::uint32_t round = round_.load() & ~kStopped;  // which lasts until this member has arrived
    if (arrived_.fetch_add(1) + 1 == members) {
        arrived_.store(0, std::memory_order_relaxed);
        round_.fetch_add(kRound);
        if (sleepers_.load() != 0) wake_all(round_);
    }
    return round;
}

void Meeting::saw(Clock::time_point come, Clock::duration usual) {
    seen_ = Clock::now();
    unseen_ = 0;
    if (seen_ - come > usual) lost_ += seen_ - come;
}

void Meeting::announce(bool may_part) {
    const bool parts = may_part && contention.shows(lost_, seen_ - began_);
    const std::uint32_t parts_in = parts ? rounds_ * kRound : kNoRound;
    if (parts_in_.load(std::memory_order_relaxed) != parts_in) parts_in_.store(parts_in, std::memory_order_relaxed);
    if (parts) {
        began_ = Clock::now();
        lost_ = {};
        contention.begin(began_);
    }
    ++rounds_;
    ++unseen_;
}

unsigned Member::meet(unsigned which, unsigned own, unsigned members, bool may_part) {
    if (members == 1) return stopped() ? 0 : 1;
    Meeting& meeting = team_.meeting(which);
    const bool first = own == 0;
    if (first) meeting.announce(may_part);
    const std::uint32_t round = meeting.arrive(members);
    const auto ended = [&] { return meeting.round_.load(std::memory_order_acquire) != round; };  // or stopped
    bool over = false;
    for (int i = 0; i < kLooks && !over; ++i) over = ended();
    if (!over) {
        const auto come = Clock::now();
        const auto worked = first ? (come - meeting.seen_) / meeting.unseen_ : Clock::duration::zero();
        const auto limit = std::max<Clock::duration>(kSpinInMeeting, std::min<Clock::duration>(worked / 4, 200us));
        if (!spin_until(ended, limit)) {
            meeting.sleepers_.fetch_add(1);
            while (!ended()) {
                sleep_while(meeting.round_, round, kBetweenPolls);
                if (rank_ == 0) team_.poll();
            }
            meeting.sleepers_.fetch_sub(1);
        }
        if (first)
            meeting.saw(come, which == 0 ? std::max<Clock::duration>(kLostBetweenKernels, worked)
                                         : std::max<Clock::duration>(kLost, worked / 2));
    }
    if (stopped()) return 0;
    return meeting.parts_in_.load(std::memory_order_relaxed) == round ? 1 : members;
}

namespace {

// Returns false where that cannot be done.
bool run_on_openmp(const OpenMP& openmp, unsigned wanted, const std::function<bool()>& poll,
                   const std::function<void(Member&)>& work) {
    Pool& beside = pool();
    const unsigned allowed = allowed_threads(), threads = std::min(wanted, allowed);
    Team team(threads, poll);
    if (!beside.enter(threads, allowed)) return false;
    const bool run = openmp.run(threads, [&](unsigned rank) { team.work(work, rank); });
    beside.leave(threads);
    if (!run) return false;
    team.account();
    team.rethrow();
    return true;
}

}  // namespace

void run_on_team(unsigned wanted, const std::function<bool()>& poll, const std::function<void(Member&)>& work) {
    const OpenMP* const openmp = wanted > 1 ? OpenMP::current() : nullptr;
    if (openmp != nullptr && run_on_openmp(*openmp, wanted, poll, work)) return;
    const Taken taken(pool(), wanted - 1, wanted > 1 ? allowed_threads() : 1);
    const std::vector<Worker*>& workers = taken.workers();
    Team team(static_cast<unsigned>(workers.size()) + 1, poll);
    for (unsigned i = 0; i < workers.size(); ++i) workers[i]->give(team, work, i + 1);
    team.work(work, 0);
    for (Worker* worker : workers) worker->wait(team);
    team.account();
    team.rethrow();
}

std::size_t idle_threads() { return pool().idle(); }

}  // namespace vkrnn::cpu
