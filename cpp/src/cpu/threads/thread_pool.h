// A pool of worker threads shared by all calls, which also limits how many threads are busy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/system.h"

namespace vkrnn::cpu {

// A thread that waits for work. It is never destroyed: its caller may still access it after the work is done.
class Worker {
public:
    // Makes the thread call `work` with the rank. `work` must live until wait() has returned.
    void give(const std::function<void(unsigned)>& work, unsigned rank);

    // Waits until the work is done. Calls `poll` now and then, and gives up if it returns false.
    void wait(const std::function<bool()>& poll);

private:
    friend class Pool;

    void run();

    std::atomic<std::uint32_t> turn_ = 0, done_ = 0;  // numbers of the last work given and of the last finished
    std::atomic<std::uint32_t> sleeps_ = 0, waited_for_ = 0;
    const std::function<void(unsigned)>* work_ = nullptr;
    unsigned rank_ = 0;
    std::size_t number_ = 0;  // how many workers were created before it
    system::Thread thread_{};
    system::Processors processors_;
};

// The idle workers, and how many threads of the process run calls.
class Pool {
public:
    // Returns up to `wanted` workers: fewer if threads of the process are busy or cannot be created. Takes nothing if
    // it throws. `apart`: each worker gets a processor of its own, on which threads of other libraries may be busy.
    std::vector<Worker*> take(unsigned wanted, unsigned allowed, bool apart);
    // Does not allocate memory: the list already has room for all workers.
    void give_back(const std::vector<Worker*>& workers) noexcept;

    // Registers threads from outside the pool until leave(). Returns false if they would exceed `allowed`.
    bool enter(unsigned threads, unsigned allowed);
    void leave(unsigned threads);

    std::size_t idle();

private:
    bool make() noexcept;
    static void place(const std::vector<Worker*>& workers, bool apart);

    std::mutex mutex_;
    std::vector<Worker*> idle_;
    std::size_t made_ = 0;
    unsigned running_ = 0;  // threads that run calls, inside or outside the pool
};

// Returns the process's pool. A forked child has a new one, because it has none of its parent's threads.
Pool& pool();

// Holds workers as long as the object lives. In a child that was forked meanwhile they are not given back, because they
// do not exist there.
class Taken {
public:
    Taken(Pool& from, unsigned wanted, unsigned allowed, bool apart)
        : from_(from), workers_(from.take(wanted, allowed, apart)) {}
    ~Taken() {
        if (&from_ == &pool()) from_.give_back(workers_);
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

    [[nodiscard]] const std::vector<Worker*>& workers() const { return workers_; }

private:
    Pool& from_;
    const std::vector<Worker*> workers_;
};

// Returns whether calls with this many threads use every processor that the calling thread may use. Otherwise there is
// a quota or another limit: many programs may share the processors, and would place their threads on the same ones.
bool fills_processors(unsigned threads);

// Returns how many times the process has been forked since the library was loaded, counting through all generations.
unsigned forks();

}  // namespace vkrnn::cpu
