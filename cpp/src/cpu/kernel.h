// The CPU's kernels by name, compiled for several instruction sets of which one is chosen when the process starts.
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

// How many threads the work is worth, of so many that it may have.
using ThreadsFunction = unsigned (*)(const std::byte* work, const std::uint32_t* constants, unsigned most);

struct NamedKernel {
    std::string_view name;
    KernelFunction run;
    ThreadsFunction threads;
};

// An instruction set and its kernels.
struct Target {
    std::string_view name;  // "avx512", "avx2", "sse4", "neon", "scalar"
    std::uint32_t lanes;    // of float32
    std::vector<NamedKernel> kernels;
};

// Those that this processor has, best first.
std::span<const Target> targets();

// The best of them, or the one that the environment variable VKRNN_CPU_TARGET names. Throws DeviceError where it names
// none.
const Target& chosen_target();

// Throws std::logic_error where there is none of that name.
const NamedKernel& find_kernel(const Target& target, std::string_view name);

}  // namespace vkrnn::cpu
