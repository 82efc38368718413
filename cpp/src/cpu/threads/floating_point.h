// The floating-point modes of a thread that results depend on: rounding, and whether denormals count as 0.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace vkrnn::cpu {

#if defined(__x86_64__)
using FloatModes = std::uint32_t;
// Bits of MXCSR: denormals are zeros (6), rounding (13 and 14), flush to zero (15). The other bits are exceptions.
inline constexpr FloatModes kFloatModes = 0xe040;
inline FloatModes float_control() { return _mm_getcsr(); }
inline void set_float_control(FloatModes control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
using FloatModes = std::uint64_t;
// Bits of FPCR: flush float16 to zero (19), rounding (22 and 23), flush to zero (24), default NaN (25).
inline constexpr FloatModes kFloatModes = 0x3c80000;
inline FloatModes float_control() {
    FloatModes control = 0;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}
inline void set_float_control(FloatModes control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
using FloatModes = int;
inline constexpr FloatModes kFloatModes = -1;
inline FloatModes float_control() { return std::fegetround(); }
inline void set_float_control(FloatModes control) { std::fesetround(control); }
#endif

// Returns the calling thread's modes.
inline FloatModes float_modes() { return float_control() & kFloatModes; }

// Sets the calling thread's modes while the object lives, and restores the earlier ones afterwards.
class WithFloatModes {
public:
    explicit WithFloatModes(FloatModes modes) : before_(float_modes()) { set(modes); }
    ~WithFloatModes() { set(before_); }
    WithFloatModes(const WithFloatModes&) = delete;
    WithFloatModes& operator=(const WithFloatModes&) = delete;

private:
    static void set(FloatModes modes) {
        const FloatModes control = float_control();
        if ((control & kFloatModes) != modes) set_float_control((control & ~kFloatModes) | modes);
    }

    const FloatModes before_;
};

}  // namespace vkrnn::cpu
