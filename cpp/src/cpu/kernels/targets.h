// Which instruction sets the kernels are compiled for. To be included before anything of Highway's.
#pragma once

#include "hwy/detect_compiler_arch.h"

// One lane, where a processor has nothing better; Highway's own default depends on the compiler.
#define HWY_BROKEN_EMU128 1

#if defined(__x86_64__) || defined(_M_X64)
#define HWY_BASELINE_TARGETS HWY_SCALAR
#endif

// Left out: SSE2 and SSSE3 are older than any processor that these kernels are for, the later AVX-512 targets bring
// nothing that they use, and a vector whose length is not known when it is compiled fits no array. Others where whoever
// builds wants them left out: see VKRNN_CPU_TARGETS.
#ifndef VKRNN_UNWANTED_TARGETS
#define VKRNN_UNWANTED_TARGETS 0
#endif
#if HWY_ARCH_X86
#define VKRNN_LATER_TARGETS ((1LL << 3) | (1LL << 4) | (1LL << 5) | (1LL << 6) | (1LL << 7))
#define HWY_DISABLED_TARGETS (VKRNN_UNWANTED_TARGETS | VKRNN_LATER_TARGETS | (1LL << 12) | (1LL << 13) | (1LL << 14))
#elif HWY_ARCH_ARM
#define HWY_DISABLED_TARGETS \
    ((1LL << 18) | (1LL << 19) | (1LL << 23) | (1LL << 24) | (1LL << 25) | (1LL << 26) | (1LL << 27))
#endif
