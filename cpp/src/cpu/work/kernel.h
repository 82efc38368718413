// The CPU's kernels by name. They are compiled for several instruction sets, and the process chooses one at its first
// use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace vkrnn::cpu {

class Member;

// Does a member's share of the work. `constants` are those of the plan's kernel.
using KernelFunction = void (*)(const std::byte* work, const std::uint32_t* constants, Member& member);

// Returns how many threads, at most `most`, the work is worth.
using ThreadsFunction = unsigned (*)(const std::byte* work, const std::uint32_t* constants, unsigned most);

// Returns the estimated nanoseconds of the work on `threads` threads.
using TimeFunction = double (*)(const std::byte* work, const std::uint32_t* constants, unsigned threads);

struct NamedKernel {
    std::string_view name;
    KernelFunction run;
    ThreadsFunction threads;
    TimeFunction time = nullptr;  // of time loops, whose work is a LoopWork
};

// An instruction set and its kernels.
struct Target {
    std::string_view name;  // "avx512", "avx2", "sse4", "neon", "scalar"
    std::uint32_t lanes;    // float32 elements in a vector
    std::vector<NamedKernel> kernels;
};

// Returns the targets that this processor supports, best first.
std::span<const Target> targets();

// Returns the best target, or the one that the environment variable VKRNN_CPU_TARGET names. Throws DeviceError if there
// is none of that name.
const Target& chosen_target();

// Throws std::logic_error if there is no kernel of that name.
const NamedKernel& find_kernel(const Target& target, std::string_view name);

}  // namespace vkrnn::cpu
