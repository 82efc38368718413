// The instruction sets of a processor that its operating system lets programs use. The compilers' own
// __builtin_cpu_supports is no alternative, because that of zig's library always says no.
#pragma once

#include <cstdint>
#include <initializer_list>

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#endif

namespace vkrnn::cpu {

// Groups of instructions, as Highway's targets use them. On x86-64, each includes the one before.
struct Processor {
    bool scalar = true, sse4 = false, avx2 = false, avx512 = false, neon = false;
};

#if defined(__x86_64__) || defined(_M_X64)
// Asks the processor (Intel's manual, volume 2, CPUID and XGETBV).
inline Processor this_processor() {
    const auto has = [](std::uint32_t flags, std::initializer_list<int> bits) {
        for (const int bit : bits)
            if ((flags >> bit & 1U) == 0) return false;
        return true;
    };
    struct Leaf {
        std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    } first, seventh;
    if (__get_cpuid(1, &first.eax, &first.ebx, &first.ecx, &first.edx) == 0) return {};
    __get_cpuid_count(7, 0, &seventh.eax, &seventh.ebx, &seventh.ecx, &seventh.edx);
    constexpr int kXgetbv = 27;
    std::uint32_t saved = 0, upper = 0;  // registers that the operating system saves
    if (has(first.ecx, {kXgetbv})) asm("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));

    Processor found;
    found.sse4 = has(first.ecx, {1, 20, 25});                                                  // PCLMUL, SSE4.2, AES
    found.avx2 = found.sse4 && has(saved, {1, 2}) && has(first.ecx, {12, 28, 29}) &&           // FMA, AVX, F16C
                 has(seventh.ebx, {3, 5, 8});                                                  // BMI1, AVX2, BMI2
    found.avx512 = found.avx2 && has(saved, {5, 6, 7}) && has(seventh.ebx, {16, 17, 30, 31});  // F, DQ, BW, VL
    return found;
}
#elif defined(__aarch64__)
inline Processor this_processor() { return {.neon = true}; }
#else
inline Processor this_processor() { return {}; }
#endif

}  // namespace vkrnn::cpu
