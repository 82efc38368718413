// A mutex that fork() never leaves locked in the child. The forking thread first locks all of them, so the child finds
// the data that they guard in a consistent state.
#pragma once

#include <cstdint>
#include <mutex>

namespace vkrnn {

class ForkedMutexes;

// A std::mutex with two rules. First, a thread that holds one must not construct another, and may lock another only of
// a kind that a fork locks later. Second, a mutex that lives until the process ends must be constructed when the
// library is loaded. If a function constructed it at its first use and the process were forked meanwhile, the child
// would wait forever for the construction to finish.
class ForkSafeMutex {
public:
    // Forks lock the kinds in this order. hold_before_fork() locks the first two, before drivers' own handlers of
    // forks.
    enum class Kind : std::uint8_t {
        outer,   // its holder may be inside a driver, and may lock any other kind; no thread locks two of them
        driver,  // its holder may be inside a driver
        inner,   // its holder calls no driver, and nothing that waits for Python's lock
    };
    explicit ForkSafeMutex(Kind kind = Kind::inner);
    ~ForkSafeMutex();
    ForkSafeMutex(const ForkSafeMutex&) = delete;
    ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

    // Do nothing in a thread that holds all mutexes of the kind for a fork.
    void lock();
    bool try_lock();
    void unlock();

private:
    friend class ForkedMutexes;

    std::mutex mutex_;
    ForkedMutexes& all_;  // those that a fork locks together with this one
};

}  // namespace vkrnn
