// A mutex that fork() never leaves locked in the child. The forking thread first locks all of them, so the child finds
// the data that they guard in a consistent state.
#pragma once

#include <mutex>

namespace vkrnn {

// A std::mutex with two rules. First, a thread that holds one must not construct another, and must not lock another
// unless the one that it holds is an outer one. Second, a mutex that lives until the process ends must be constructed
// when the library is loaded. If a function constructed it at its first use and the process were forked meanwhile, the
// child would wait forever for the construction to finish.
class ForkSafeMutex {
public:
    // A fork locks outer mutexes first, because their holder may have to lock an inner one before it can unlock. No
    // thread locks two outer mutexes.
    enum class Kind { inner, outer };
    explicit ForkSafeMutex(Kind kind = Kind::inner);
    ~ForkSafeMutex();
    ForkSafeMutex(const ForkSafeMutex&) = delete;
    ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

    void lock() { mutex_.lock(); }
    bool try_lock() { return mutex_.try_lock(); }
    void unlock() { mutex_.unlock(); }

private:
    std::mutex mutex_;
};

}  // namespace vkrnn
