// The instruction sets that the kernels are compiled for. Include this before any header of Highway.
#pragma once

#include "hwy/detect_compiler_arch.h"

// Without SIMD instructions, vectors have one lane. Highway's own default depends on the compiler.
#define HWY_BROKEN_EMU128 1

#if defined(__x86_64__) || defined(_M_X64)
#define HWY_BASELINE_TARGETS HWY_SCALAR
#endif

// The disabled targets. SSE2 and SSSE3 are older than any processor that these kernels are for. AVX-512 targets after
// HWY_AVX3 add nothing that the kernels use. Vectors whose length is unknown at compile time cannot be elements of an
// array. A build can disable more: see VKRNN_CPU_TARGETS.
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
