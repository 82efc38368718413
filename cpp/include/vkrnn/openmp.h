// Runs work on the threads of an OpenMP library that the process already uses.
#pragma once

#include <functional>
#include <string>

namespace vkrnn {

// The OpenMP library that runs the parallel regions of a loaded library, such as PyTorch. After a region, its threads
// spin for a while, so threads of our own would compete with them for the processors. After enter(), a thread's calls
// on the CPU device run on the OpenMP threads instead.
class OpenMP {
public:
    // `user` is the path of the library that uses OpenMP. Throws DeviceError if that library is not loaded, or if its
    // OpenMP library lacks GOMP_parallel. This is the interface of GCC's library, which LLVM's and Intel's also have on
    // Linux.
    explicit OpenMP(const std::string& user);

    // Makes current() return this object in the calling thread until leave().
    void enter() const;
    static void leave();

    // Returns null if the calling thread has not called enter(), and in a forked child, which has none of the threads.
    static const OpenMP* current();

    // Returns the OpenMP library that some library of the process uses, whether or not a thread has called enter().
    // Returns null if there is none or it lacks the interface, and in a forked child, which has none of the threads.
    static const OpenMP* loaded();

    // Returns whether the second thread of the calling thread's parallel regions has worked since forget_work(). The
    // first call only runs a region to find that thread, and returns false.
    [[nodiscard]] bool has_worked() const;
    static void forget_work();

    // Returns how many threads a parallel region of the calling thread may have.
    [[nodiscard]] unsigned max_threads() const;

    // Calls `body` on `threads` threads at the same time, with ranks 0 (the calling thread) to threads - 1. Returns
    // false without calling it if the library has fewer threads. `body` must not throw, with one exception: in a child
    // process that it has forked, the calling thread throws to leave the parallel region, because the end of the region
    // would wait for threads that the child does not have.
    [[nodiscard]] bool run(unsigned threads, const std::function<void(unsigned)>& body) const;

private:
    static void run_region(void* data);

    void (*parallel_)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*thread_number_)() = nullptr;
    int (*number_of_threads_)() = nullptr;
    int (*max_threads_)() = nullptr;
    long process_;
};

}  // namespace vkrnn
