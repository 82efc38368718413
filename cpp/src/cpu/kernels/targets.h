// The instruction set of a source, one of several sources that cmake/CpuKernels.cmake makes of the same code. Include
// this before any header of Highway.
#pragma once

// Vectors of the target that VKRNN_TARGET names, whatever instructions the compiler may use elsewhere: functions of the
// standard library must run on every processor.
#define HWY_COMPILE_ONLY_STATIC
#define HWY_BASELINE_TARGETS VKRNN_TARGET

// Without SIMD instructions, vectors have one lane. Highway's own default depends on the compiler.
#define HWY_BROKEN_EMU128 1
