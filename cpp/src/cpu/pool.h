// The threads of the process that run calls: workers that wait for work, and how many threads may be busy.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace vkrnn::cpu {

// A thread that waits for work. It lives as long as the process, because a caller's last access to it must find it.
class Worker {
public:
    // Has the thread call `work` with the rank. Both must live until wait() has returned.
    void give(const std::function<void(unsigned)>& work, unsigned rank);

    // Returns when the work is done, or when `poll`, which it calls now and then, returns false.
    void wait(const std::function<bool()>& poll);

private:
    friend class Pool;

    void run();

    std::atomic<std::uint32_t> turn_ = 0, done_ = 0;  // the work that it was given last, and that it has finished
    std::atomic<std::uint32_t> sleeps_ = 0, waited_for_ = 0;
    const std::function<void(unsigned)>* work_ = nullptr;
    unsigned rank_ = 0;
    pthread_t handle_{};
    cpu_set_t affinity_{};
};

// The workers of the process, and how many of its threads run calls.
class Pool {
public:
    // Returns up to `wanted` workers, fewer if threads of the process are busy already or cannot be made. Nothing has
    // been taken if it throws.
    std::vector<Worker*> take(unsigned wanted, unsigned allowed);
    // Does not allocate memory: there is room for all workers.
    void give_back(const std::vector<Worker*>& workers) noexcept;

    // Registers that many threads from outside the pool until leave(). Returns false if they exceed what is allowed.
    bool enter(unsigned threads, unsigned allowed);
    void leave(unsigned threads);

    std::size_t idle();

private:
    bool make() noexcept;
    static void follow_affinity(const std::vector<Worker*>& workers);

    std::mutex mutex_;
    std::vector<Worker*> idle_;
    std::size_t made_ = 0;
    unsigned running_ = 0;  // threads that run calls, of the pool or not
};

// Returns the pool of the process. A forked child has a new one, because it has none of its parent's threads.
Pool& pool();

// Workers for as long as the object lives. A child that was forked meanwhile does not give them back: it has none.
class Taken {
public:
    Taken(Pool& from, unsigned wanted, unsigned allowed) : from_(from), workers_(from.take(wanted, allowed)) {}
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

// Returns how many forks lie between this process and the one that loaded the library.
unsigned forks();

}  // namespace vkrnn::cpu
