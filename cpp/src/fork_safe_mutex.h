// A mutex that no fork leaves locked: the thread that forks takes all of them first, so that the child finds what they
// guard whole.
#pragma once

#include <mutex>

namespace vkrnn {

// A std::mutex with two rules: a thread that holds one makes none, and waits for no other ForkSafeMutex unless the one
// that it holds is an outer one; and one that lives until the process ends is made when the library is loaded, since a
// process that is forked while a function makes it at its first use would wait for that for ever.
class ForkSafeMutex {
public:
    // A fork takes an outer one first: who holds it may have to wait for another before it can give it back. The core
    // has one.
    enum class Kind { inner, outer };
    explicit ForkSafeMutex(Kind kind = Kind::inner);
    ~ForkSafeMutex();
    ForkSafeMutex(const ForkSafeMutex&) = delete;
    ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

private:
    std::mutex mutex_;
};

}  // namespace vkrnn
