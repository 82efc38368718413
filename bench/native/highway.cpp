// Compares the CPU kernels' own functions with Highway's, for every instruction set of this processor: exp, tanh and
// sigmoid with hwy/contrib/math, and conversions of 16-bit types with PromoteTo and DemoteTo. Both are timed in turns.
#include "targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "highway.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "convert-inl.h"
#include "cpu/work/kernel.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {
namespace {

constexpr std::size_t kTimed = 2048;  // numbers, which fit into the first cache

// Returns the median of Highway's time divided by ours.
template <class In, class Out>
double time_ratio(void (*ours)(const In*, Out*, std::size_t), void (*highways)(const In*, Out*, std::size_t),
                  const In* in) {
    std::vector<Out> out(kTimed);
    const auto seconds = [&](auto* function) {
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < 20; ++i) {
            function(in, out.data(), kTimed);
            asm volatile("" ::: "memory");
        }
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    std::vector<double> ratios;
    for (int i = 0; i < 501; ++i) {
        const double own = seconds(ours);
        ratios.push_back(seconds(highways) / own);
    }
    std::ranges::nth_element(ratios, ratios.begin() + 250);
    return ratios[250];
}

template <class T, Vector<T> (*Function)(Vector<T>)>
HWY_NOINLINE void map(const T* in, T* out, std::size_t count) {
    for (std::size_t i = 0; i < count; i += static_cast<std::size_t>(kLanes<T>))
        hn::StoreU(Function(hn::LoadU(Tag<T>(), in + i)), Tag<T>(), out + i);
}

template <class T>
HWY_INLINE Vector<T> highways_exp(Vector<T> x) {
    return hn::Exp(Tag<T>(), x);
}
template <class T>
HWY_INLINE Vector<T> highways_tanh(Vector<T> x) {
    return hn::Tanh(Tag<T>(), x);
}
template <class T>
HWY_INLINE Vector<T> highways_sigmoid(Vector<T> x) {
    const auto one = hn::Set(Tag<T>(), T{1});
    return hn::Div(one, hn::Add(one, hn::Exp(Tag<T>(), hn::Neg(x))));
}

// Returns the largest error in units of the last place, over evenly spaced arguments.
template <class T>
double worst_error(void (*function)(const T*, T*, std::size_t), long double (*exact)(long double), double low,
                   double high) {
    constexpr std::size_t kCount = 1 << 22, kPart = 4096;
    std::vector<T> in(kPart), out(kPart);
    double worst = 0;
    for (std::size_t done = 0; done < kCount; done += kPart) {
        for (std::size_t i = 0; i < kPart; ++i)
            in[i] = static_cast<T>(low + (high - low) * (static_cast<double>(done + i) + 0.5) / double{kCount});
        function(in.data(), out.data(), kPart);
        for (std::size_t i = 0; i < kPart; ++i) {
            const long double value = exact(static_cast<long double>(in[i]));
            const T nearest = static_cast<T>(value);
            const T unit = std::nextafter(std::abs(nearest), std::numeric_limits<T>::infinity()) - std::abs(nearest);
            worst = std::max(worst, static_cast<double>(std::abs(static_cast<long double>(out[i]) - value) /
                                                        static_cast<long double>(unit)));
        }
    }
    return worst;
}

template <class T>
void compare_functions(const char* type) {
    struct Row {
        const char* name;
        void (*ours)(const T*, T*, std::size_t);
        void (*highways)(const T*, T*, std::size_t);
        long double (*exact)(long double);
        double low, high;
    };
    const Row rows[] = {
        {"exp", map<T, exponential<T>>, map<T, highways_exp<T>>, [](long double x) { return std::exp(x); }, -80, 0},
        {"tanh", map<T, hyperbolic_tangent<T>>, map<T, highways_tanh<T>>, [](long double x) { return std::tanh(x); },
         -10, 10},
        {"sigmoid", map<T, sigmoid<T>>, map<T, highways_sigmoid<T>>,
         [](long double x) { return 1 / (1 + std::exp(-x)); }, -20, 20},
    };
    for (const Row& row : rows) {
        std::vector<T> in(kTimed);
        for (std::size_t i = 0; i < kTimed; ++i)
            in[i] = static_cast<T>(row.low + (row.high - row.low) * static_cast<double>(i * 769 % kTimed) / kTimed);
        std::printf("%-8s %-8s errors: ours %.2f ulp, Highway's %.2f ulp; Highway's time : ours %.2f\n", type, row.name,
                    worst_error<T>(row.ours, row.exact, row.low, row.high),
                    worst_error<T>(row.highways, row.exact, row.low, row.high),
                    time_ratio(row.ours, row.highways, in.data()));
    }
}

// Our own conversions, without Highway's that some instruction sets use.
template <std::uint16_t (*Function)(float)>
HWY_NOINLINE void narrow(const float* in, std::uint16_t* out, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = Function(in[i]);
}
template <float (*Function)(std::uint16_t)>
HWY_NOINLINE void widen(const std::uint16_t* in, float* out, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[i] = Function(in[i]);
}

template <class Half>
HWY_NOINLINE void highways_narrow(const float* in, std::uint16_t* out, std::size_t count) {
    const hn::Rebind<Half, Tag<float>> half;
    for (std::size_t i = 0; i < count; i += static_cast<std::size_t>(kLanes<float>))
        hn::StoreU(hn::DemoteTo(half, hn::LoadU(Tag<float>(), in + i)), half, reinterpret_cast<Half*>(out + i));
}
template <class Half>
HWY_NOINLINE void highways_widen(const std::uint16_t* in, float* out, std::size_t count) {
    const hn::Rebind<Half, Tag<float>> half;
    for (std::size_t i = 0; i < count; i += static_cast<std::size_t>(kLanes<float>))
        hn::StoreU(hn::PromoteTo(Tag<float>(), hn::LoadU(half, reinterpret_cast<const Half*>(in + i))), Tag<float>(),
                   out + i);
}

constexpr std::size_t kPatterns = 65536;

void compare_widening(const char* type, void (*ours)(const std::uint16_t*, float*, std::size_t),
                      void (*highways)(const std::uint16_t*, float*, std::size_t)) {
    std::vector<std::uint16_t> in(kPatterns);
    for (std::size_t i = 0; i < kPatterns; ++i) in[i] = static_cast<std::uint16_t>(i);
    std::vector<float> own(kPatterns), other(kPatterns);
    ours(in.data(), own.data(), kPatterns);
    highways(in.data(), other.data(), kPatterns);
    int differ = 0;
    for (std::size_t i = 0; i < kPatterns; ++i) differ += std::memcmp(&own[i], &other[i], sizeof(float)) != 0 ? 1 : 0;
    std::printf("%-8s to float: %d of 65536 differ; Highway's time : ours %.2f\n", type, differ,
                time_ratio(ours, highways, in.data() + 0x3800));  // normal numbers
}

// Compares 2^28 evenly spaced patterns of a float.
void compare_narrowing(const char* type, void (*ours)(const float*, std::uint16_t*, std::size_t),
                       void (*highways)(const float*, std::uint16_t*, std::size_t)) {
    std::vector<float> in(kPatterns);
    std::vector<std::uint16_t> own(kPatterns), other(kPatterns);
    long differ = 0;
    for (std::uint32_t part = 0; part < 4096; ++part) {
        for (std::uint32_t i = 0; i < kPatterns; ++i) in[i] = std::bit_cast<float>((part << 20) + (i << 4) + i % 16);
        ours(in.data(), own.data(), kPatterns);
        highways(in.data(), other.data(), kPatterns);
        for (std::size_t i = 0; i < kPatterns; ++i) differ += own[i] != other[i] ? 1 : 0;
    }
    for (std::size_t i = 0; i < kPatterns; ++i) in[i] = static_cast<float>(i % 2001) / 1000.0F - 1.0F;
    std::printf("float to %s: %ld of 268435456 differ; Highway's time : ours %.2f\n", type, differ,
                time_ratio(ours, highways, in.data()));
}

}  // namespace

void compare_with_highway() {
    compare_functions<float>("float");
    compare_functions<double>("double");
    compare_widening("float16", widen<from_half>, highways_widen<hwy::float16_t>);
    compare_narrowing("float16", narrow<to_half>, highways_narrow<hwy::float16_t>);
    compare_widening("bfloat16", widen<from_bfloat>, highways_widen<hwy::bfloat16_t>);
    compare_narrowing("bfloat16", narrow<to_bfloat>, highways_narrow<hwy::bfloat16_t>);
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
int main() {
    using namespace vkrnn::cpu;
    std::printf("Highway %d.%d.%d\n", HWY_MAJOR, HWY_MINOR, HWY_PATCH);
    for (const Target& target : targets()) {
        std::printf("%s\n", std::string(target.name).c_str());
#if HWY_TARGETS & HWY_AVX3
        if (target.name == "avx512") N_AVX3::compare_with_highway();
#endif
#if HWY_TARGETS & HWY_AVX2
        if (target.name == "avx2") N_AVX2::compare_with_highway();
#endif
#if HWY_TARGETS & HWY_SSE4
        if (target.name == "sse4") N_SSE4::compare_with_highway();
#endif
#if HWY_TARGETS & HWY_NEON
        if (target.name == "neon") N_NEON::compare_with_highway();
#endif
#if HWY_TARGETS & HWY_SCALAR
        if (target.name == "scalar") N_SCALAR::compare_with_highway();
#endif
    }
}
#endif
