// What makes Mesa's CPU driver faster and is set from outside it. Nothing here does anything where that driver is not.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace vkrnn::vk {

// How many devices are to share a call's dispatches (see team.h): one for each processor that the process may use, but
// one only where there are so many that the driver's own threads do better, or where the user has set LP_NUM_THREADS.
std::size_t team_size();

// While it lives, instances that are made have a driver without threads: it works in the thread that submits.
class WithoutThreads {
public:
    WithoutThreads();
    ~WithoutThreads();
    WithoutThreads(const WithoutThreads&) = delete;
    WithoutThreads& operator=(const WithoutThreads&) = delete;
};

// While it lives, a driver that is loaded computes with vectors of 512 bits; by itself it stops at 256.
class WideVectors {
public:
    // Whether the processor has them and the user has not set LP_NATIVE_VECTOR_WIDTH.
    static bool possible();

    WideVectors();
    ~WideVectors();
    WideVectors(const WideVectors&) = delete;
    WideVectors& operator=(const WideVectors&) = delete;
};

// While it lives, threads that the calling thread starts run on one processor: the n-th of those that the process may
// use. A device's thread starts with the device; two that spin on one processor wait for the scheduler.
class OnProcessor {
public:
    explicit OnProcessor(std::optional<std::size_t> n);
    ~OnProcessor();
    OnProcessor(const OnProcessor&) = delete;
    OnProcessor& operator=(const OnProcessor&) = delete;

private:
    std::vector<int> before_;  // empty: nothing was changed
};

// After a device is made: one processor for each of the driver's compute threads, of those that the process may use.
// The scheduler may leave two of them on one processor for a second after a long compilation.
void pin_workers();

}  // namespace vkrnn::vk
