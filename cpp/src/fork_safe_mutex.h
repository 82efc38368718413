// A mutex that no fork leaves locked: the thread that forks takes all of them first, so that the child finds what they
// guard whole.
#pragma once

#include <mutex>

namespace vkrnn {

// A std::mutex with two rules: a thread that holds one waits for no other ForkSafeMutex and makes none; and one that
// lives until the process ends is made when the library is loaded, since a process that is forked while a function
// makes it at its first use would wait for that for ever.
class ForkSafeMutex {
public:
    ForkSafeMutex();
    ~ForkSafeMutex();
    ForkSafeMutex(const ForkSafeMutex&) = delete;
    ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

private:
    std::mutex mutex_;
};

}  // namespace vkrnn
