// Threads of an OpenMP library that the process uses already.
#pragma once

#include <functional>
#include <string>

namespace vkrnn {

// The OpenMP library that a loaded library, PyTorch's say, runs its parallel regions with. After a region its threads
// spin for a while, and threads of our own would have to share the processors with them. Calls on the CPU device run on
// these threads instead, where the calling thread has said so by enter().
class OpenMP {
public:
    // `user`: the path of the library that uses OpenMP. Throws DeviceError where that is not loaded, or where its
    // OpenMP has no GOMP_parallel, the interface of GCC's library, which LLVM's and Intel's have too on Linux.
    explicit OpenMP(const std::string& user);

    // Until leave(), current() is this object in the calling thread.
    void enter() const;
    static void leave();

    // Null where the calling thread has entered none, and in a forked child, which has none of the threads.
    static const OpenMP* current();

    // The OpenMP library that some library of the process uses, entered or not. Null where there is none, or none with
    // the interface, and in a forked child, which has none of the threads of the process that found it.
    static const OpenMP* loaded();

    // Whether one of the threads that the calling thread's regions run on has worked since forget_work(). The first
    // question returns false: it finds that thread, by a region.
    [[nodiscard]] bool has_worked() const;
    static void forget_work();

    // As many threads as a parallel region of the calling thread may have.
    [[nodiscard]] unsigned max_threads() const;

    // Calls `body` on that many threads at the same time, with the ranks 0 (the calling thread) to threads - 1.
    // Returns false without a call if the library has fewer threads. `body` must not throw, with one exception: in a
    // child that it has forked, the calling thread throws to leave the parallel region. The region's end would wait for
    // threads that the child does not have.
    [[nodiscard]] bool run(unsigned threads, const std::function<void(unsigned)>& body) const;

private:
    static void run_region(void* data);

    void (*parallel_)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*thread_number_)() = nullptr;
    int (*number_of_threads_)() = nullptr;
    int (*max_threads_)() = nullptr;
    int process_;
};

}  // namespace vkrnn
