#include "cpu/threads/thread_pool.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>

#include "cpu/threads/spin.h"
#include "vkrnn/poll_interval.h"

namespace vkrnn::cpu {
namespace {

using namespace std::chrono_literals;

// How long threads spin before they sleep. Workers spin while they wait for work, because waking a sleeping thread
// takes long; callers spin while they wait for a worker.
constexpr auto kSpinForWork = 100us;
constexpr auto kSpinForWorker = 20us;

// The pools are never destroyed, because their threads wait in them until the process ends. The first one is created
// when the library is loaded. If a function created it at first use, a process that was forked during that would wait
// for ever.
std::atomic<Pool*> current_pool = new Pool;  // NOLINT(cppcoreguidelines-owning-memory)
std::atomic<unsigned> forks_so_far = 0;
[[maybe_unused]] const bool new_pool_after_a_fork = system::at_fork(nullptr, nullptr, [] {
    ++forks_so_far;
    current_pool = new Pool;  // NOLINT(cppcoreguidelines-owning-memory)
});

}  // namespace

Pool& pool() { return *current_pool; }

unsigned forks() { return forks_so_far.load(std::memory_order_relaxed); }

void Worker::run() {
    for (std::uint32_t last = 0;; ++last) {
        if (!spin_until([&] { return turn_.load(std::memory_order_acquire) != last; }, kSpinForWork)) {
            sleeps_ = 1;
            while (turn_.load() == last) system::sleep_while(turn_, last, 1h);
            sleeps_ = 0;
        }
        (*work_)(rank_);
        done_.store(last + 1);
        if (waited_for_.load() != 0) system::wake_all(done_);
    }
}

void Worker::give(const std::function<void(unsigned)>& work, unsigned rank) {
    work_ = &work;
    rank_ = rank;
    turn_.fetch_add(1);
    if (sleeps_.load() != 0) system::wake_all(turn_);
}

void Worker::wait(const std::function<bool()>& poll) {
    const std::uint32_t wanted = turn_.load();
    if (spin_until([&] { return done_.load(std::memory_order_acquire) == wanted; }, kSpinForWorker)) return;
    waited_for_ = 1;
    for (std::uint32_t seen = done_.load(); seen != wanted; seen = done_.load()) {
        system::sleep_while(done_, seen, poll_interval);
        if (!poll()) break;
    }
    waited_for_ = 0;
}

std::vector<Worker*> Pool::take(unsigned wanted, unsigned allowed, bool apart) {
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
    place(taken, apart);
    running_ += static_cast<unsigned>(taken.size());
    return taken;
}

void Pool::give_back(const std::vector<Worker*>& workers) noexcept {
    const std::lock_guard lock(mutex_);
    running_ -= 1 + static_cast<unsigned>(workers.size());
    // The first worker taken will be taken first again, because its caches hold the data.
    idle_.insert(idle_.end(), workers.rbegin(), workers.rend());
}

bool Pool::enter(unsigned threads, unsigned allowed) {
    const std::lock_guard lock(mutex_);
    if (running_ + threads > allowed) return false;
    running_ += threads;
    return true;
}

void Pool::leave(unsigned threads) {
    const std::lock_guard lock(mutex_);
    running_ -= threads;
}

std::size_t Pool::idle() {
    const std::lock_guard lock(mutex_);
    return idle_.size();
}

// Creates an idle worker. Returns false if the system cannot create another thread.
bool Pool::make() noexcept try {
    auto worker = std::make_unique<Worker>();
    if (idle_.capacity() == made_) idle_.reserve(2 * made_ + 8);
    const auto body = [](void* self) -> void* {
        static_cast<Worker*>(self)->run();
        return nullptr;
    };
    const auto thread = system::start_thread(body, worker.get());
    if (!thread) return false;
    worker->thread_ = *thread;
    worker->processors_ = system::allowed_processors().value_or(system::Processors{});
    worker->number_ = made_++;
    idle_.push_back(worker.release());
    return true;
} catch (const std::bad_alloc&) {
    return false;
}

// Lets the workers run on the processors that the calling thread may use now. `apart`: each worker may use only one of
// them, another one than the calling thread does now if there are more processors than workers. Workers that were made
// when there were more processors may share one.
void Pool::place(const std::vector<Worker*>& workers, bool apart) {
    if (workers.empty()) return;
    const auto all = system::allowed_processors();
    if (!all) return;
    std::array<std::size_t, system::Processors::kMost> numbers{};
    std::size_t count = 0;
    for (std::size_t i = 0; i < numbers.size() && apart; ++i)
        if (all->has(i)) numbers.at(count++) = i;
    const int callers = system::current_processor();
    for (Worker* worker : workers) {
        system::Processors target = *all;
        if (count != 0) {
            const std::size_t own = numbers.at((worker->number_ + 1) % count);
            target = {};
            target.add(static_cast<int>(own) == callers ? numbers.front() : own);
        }
        if (worker->processors_ == target) continue;
        if (system::set_processors(worker->thread_, target)) worker->processors_ = target;
    }
}

bool fills_processors(unsigned threads) {
    const auto all = system::allowed_processors();
    return all && all->count() == threads;
}

}  // namespace vkrnn::cpu
