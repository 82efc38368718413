// Tests single CPU kernels of every instruction set of this processor against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/kernels/processor.h"
#include "cpu_team.h"
#include "plan/cpu_work.h"

namespace vkrnn::cpu {
namespace {

constexpr unsigned kThreads[] = {1, 2, 3, 5};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
TEST(Processor, HasWhatTheCompilerFinds) {
    const Processor found = this_processor();
    __builtin_cpu_init();
    const bool sse4 =
        __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
    const bool avx2 = sse4 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    EXPECT_EQ(found.sse4, sse4);
    EXPECT_EQ(found.avx2, avx2);
    EXPECT_EQ(found.avx512, avx512);
}
#endif

TEST(Targets, EndWithTheSmallestAndHaveAllKernels) {
    ASSERT_FALSE(targets().empty());
#if defined(__aarch64__)
    EXPECT_EQ(targets().front().name, "neon");
    EXPECT_EQ(targets().front().lanes, 4u);
#elif defined(__x86_64__)
    EXPECT_EQ(targets().back().name, "scalar");
    EXPECT_EQ(targets().back().lanes, 1u);
#endif
    for (const Target& target : targets()) {
        std::string names;
        for (const char* type : {"", "_f64"}) {
            for (const char* kernel : {"pack", "product", "sum_rows"})
                EXPECT_NO_THROW(find_kernel(target, std::string(kernel) + type)) << target.name;
            for (const char* cell : {"lstm", "gru", "single_gate_rnn"})
                for (const char* loop : {"_forward", "_recompute", "_backward"})
                    EXPECT_NO_THROW(find_kernel(target, cell + std::string(loop) + type)) << target.name;
        }
        EXPECT_NO_THROW(find_kernel(target, "convert"));
        EXPECT_THROW(find_kernel(target, "none"), std::logic_error);
    }
}

// A matrix with elements at row * outer + column * inner. One stride is 1, the other one leaves a gap.
struct Layout {
    std::int64_t outer, inner, elements;
};
Layout layout_of(std::int64_t rows, std::int64_t columns, bool by_columns) {
    if (by_columns) return {1, rows + 3, columns * (rows + 3)};
    return {columns + 2, 1, rows * (columns + 2)};
}

template <class T>
void check_pack(const Target& target, std::int64_t n, std::int64_t k, std::int64_t batches, bool by_columns,
                unsigned threads) {
    const std::int64_t lanes = lanes_of<T>(target), panels = (n + lanes - 1) / lanes;
    const Layout in = layout_of(n, k, by_columns);
    const auto from = Numbers().array<T>(batches * in.elements);
    Aligned<T> to(static_cast<std::size_t>(panel_elements(n, k, batches, lanes)), T{-7});
    PackWork work{};
    work.in = address_of(from.data());
    work.out = address_of(to.data());
    work.in_n = in.outer;
    work.in_k = in.inner;
    work.in_batch = in.elements;
    work.n = n;
    work.k = k;
    work.batches = batches;
    work.blocks = work.directions = 1;
    work.head_units = n;
    run_kernel(target, kernel_for("pack", sizeof(T)), work, threads);
    std::size_t at = 0;
    for (std::int64_t batch = 0; batch < batches; ++batch)
        for (std::int64_t panel = 0; panel < panels; ++panel)
            for (std::int64_t depth = 0; depth < k; ++depth)
                for (std::int64_t lane = 0; lane < lanes; ++lane, ++at) {
                    const std::int64_t row = panel * lanes + lane,
                                       from_at = batch * in.elements + row * in.outer + depth * in.inner;
                    const T expected = row < n ? from[static_cast<std::size_t>(from_at)] : T{0};
                    ASSERT_EQ(to[at], expected) << target.name << " n " << row << " k " << depth;
                }
}

TEST(Pack, WritesPanelsWithZerosAtTheEnd) {
    for (const Target& target : targets())
        for (const bool by_columns : {false, true})
            for (const unsigned threads : kThreads)
                for (const auto& [n, k] : {std::pair(1, 1), std::pair(3, 17), std::pair(16, 4), std::pair(37, 19)}) {
                    check_pack<float>(target, n, k, 2, by_columns, threads);
                    check_pack<double>(target, n, k, 2, by_columns, threads);
                }
}

struct Sizes {
    std::int64_t m, n, k, batches;
};

template <class T>
void check_product(const Target& target, const Sizes& sizes, bool a_columns, bool b_columns, unsigned threads) {
    const auto& [m, n, k, batches] = sizes;
    const Layout a_at = layout_of(m, k, a_columns), b_at = layout_of(n, k, b_columns);
    const std::int64_t c_row = n + 3, c_batch = m * c_row + 1;
    Numbers numbers;
    const auto a = numbers.array<T>(batches * a_at.elements), b = numbers.array<T>(batches * b_at.elements);
    constexpr T kUntouched = -77;
    Aligned<T> c(static_cast<std::size_t>(batches * c_batch), kUntouched);
    Aligned<T> packed(static_cast<std::size_t>(product_elements(n, k, lanes_of<T>(target))));
    ProductWork work{};
    work.a = address_of(a.data());
    work.b = address_of(b.data());
    work.c = address_of(c.data());
    work.packed = address_of(packed.data());
    work.a_m = a_at.outer;
    work.a_k = a_at.inner;
    work.a_batch = a_at.elements;
    work.b_n = b_at.outer;
    work.b_k = b_at.inner;
    work.b_batch = b_at.elements;
    work.c_m = c_row;
    work.c_batch = c_batch;
    work.m = m;
    work.n = n;
    work.k = k;
    work.batches = batches;
    work.sets = 1;
    run_kernel(target, kernel_for("product", sizeof(T)), work, threads);
    const double tolerance = 16 * std::numeric_limits<T>::epsilon() * std::sqrt(static_cast<double>(k));
    for (std::int64_t i = 0; i < batches * c_batch; ++i) {
        const std::int64_t batch = i / c_batch, row = i % c_batch / c_row, column = i % c_batch % c_row;
        const T got = c[static_cast<std::size_t>(i)];
        if (row >= m || column >= n) {
            ASSERT_EQ(got, kUntouched) << target.name;
            continue;
        }
        double sum = 0;
        for (std::int64_t j = 0; j < k; ++j)
            sum += static_cast<double>(
                       a[static_cast<std::size_t>(batch * a_at.elements + row * a_at.outer + j * a_at.inner)]) *
                   static_cast<double>(
                       b[static_cast<std::size_t>(batch * b_at.elements + column * b_at.outer + j * b_at.inner)]);
        ASSERT_NEAR(static_cast<double>(got), sum, tolerance) << target.name << " m " << m << " n " << n << " k " << k
                                                              << " at " << batch << ", " << row << ", " << column;
    }
}

TEST(Product, IsTheSumOverK) {
    const Sizes all[] = {{1, 1, 1, 1}, {5, 3, 7, 2}, {13, 33, 130, 1}, {8, 64, 200, 2}, {101, 70, 300, 1}};
    for (const Target& target : targets())
        for (const Sizes& sizes : all)
            for (const bool a_columns : {false, true})
                for (const bool b_columns : {false, true})
                    for (const unsigned threads : {1U, 3U}) {
                        check_product<float>(target, sizes, a_columns, b_columns, threads);
                        check_product<double>(target, sizes, a_columns, b_columns, threads);
                    }
}

TEST(Product, PacksALongKInParts) {
    for (const Target& target : targets())
        for (const unsigned threads : kThreads) {
            check_product<float>(target, {7, 9, 2 * kPackedDepth + 5, 2}, false, false, threads);
            check_product<double>(target, {7, 9, kPackedDepth + 1, 2}, true, true, threads);
        }
}

template <class T>
void check_sum(const Target& target, std::int64_t rows, std::int64_t width, bool has_factor, unsigned threads) {
    constexpr std::int64_t kDirections = 2, kGates = 3;
    const std::int64_t row = kDirections * kGates * width + 5, factor_row = kDirections * width + 1;
    Numbers numbers;
    const auto in = numbers.array<T>(rows * row), factor = numbers.array<T>(rows * factor_row);
    Aligned<T> out(static_cast<std::size_t>(kDirections * kGates * width + 1), T{-7});
    SumWork work{};
    work.in = address_of(in.data());
    work.out = address_of(out.data());
    work.in_row = row;
    work.in_direction = kGates * width;
    work.in_gate = width;
    if (has_factor) {
        work.factor = address_of(factor.data());
        work.factor_row = factor_row;
        work.factor_direction = width;
        work.has_factor = 1;
    }
    work.rows = rows;
    work.directions = kDirections;
    work.gates = kGates;
    work.width = width;
    run_kernel(target, kernel_for("sum_rows", sizeof(T)), work, threads);
    EXPECT_EQ(out.back(), T{-7}) << target.name;
    const double tolerance = 16 * std::numeric_limits<T>::epsilon() * std::sqrt(static_cast<double>(rows));
    for (std::int64_t column = 0; column < kDirections * kGates * width; ++column) {
        const std::int64_t direction = column / (kGates * width), unit = column % width;
        double sum = 0;
        for (std::int64_t i = 0; i < rows; ++i)
            sum +=
                static_cast<double>(in[static_cast<std::size_t>(i * row + column)]) *
                (has_factor
                     ? static_cast<double>(factor[static_cast<std::size_t>(i * factor_row + direction * width + unit)])
                     : 1.0);
        ASSERT_NEAR(static_cast<double>(out[static_cast<std::size_t>(column)]), sum, tolerance)
            << target.name << " rows " << rows << " width " << width << " column " << column;
    }
}

TEST(SumRows, AddsColumnsWithAndWithoutAFactor) {
    for (const Target& target : targets())
        for (const std::int64_t rows : {1, 64, 201})
            for (const std::int64_t width : {1, 3, 17, 70})
                for (const bool has_factor : {false, true})
                    for (const unsigned threads : kThreads) {
                        check_sum<float>(target, rows, width, has_factor, threads);
                        check_sum<double>(target, rows, width, has_factor, threads);
                    }
}

std::vector<float> widened(const Target& target, const std::vector<std::uint16_t>& in, bool bfloat, unsigned threads) {
    std::vector<float> out(in.size());
    run_kernel(
        target, "convert",
        ConvertWork{address_of(in.data()), address_of(out.data()), static_cast<std::int64_t>(in.size()), bfloat, 0},
        threads);
    return out;
}

std::vector<std::uint16_t> narrowed(const Target& target, const std::vector<float>& in, bool bfloat, unsigned threads) {
    std::vector<std::uint16_t> out(in.size());
    run_kernel(
        target, "convert",
        ConvertWork{address_of(in.data()), address_of(out.data()), static_cast<std::int64_t>(in.size()), bfloat, 1},
        threads);
    return out;
}

// Returns the value of a bit pattern with this many exponent bits, from the definition.
double value_of(std::uint16_t pattern, int exponent_bits) {
    const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (pattern & 0x7fff) >> mantissa_bits, mantissa = pattern & ((1 << mantissa_bits) - 1);
    const double sign = (pattern & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                             : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(Convert, AllPatternsBothWays) {
    std::vector<std::uint16_t> patterns(65536);
    for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
    for (const Target& target : targets())
        for (const bool bfloat : {false, true}) {
            const auto bits = widened(target, patterns, bfloat, 1);
            for (const unsigned threads : {1U, 3U}) {
                const auto wide = widened(target, patterns, bfloat, threads);
                // NaNs, too, have the same bits on any number of threads.
                ASSERT_EQ(std::memcmp(wide.data(), bits.data(), sizeof(float) * bits.size()), 0) << target.name;
                const auto back = narrowed(target, wide, bfloat, threads);
                for (std::size_t i = 0; i < patterns.size(); ++i) {
                    const double expected = value_of(patterns[i], bfloat ? 8 : 5);
                    if (std::isnan(expected)) {
                        ASSERT_TRUE(std::isnan(wide[i])) << target.name << " " << i;
                        ASSERT_TRUE(std::isnan(value_of(back[i], bfloat ? 8 : 5))) << target.name << " " << i;
                        ASSERT_EQ(back[i] & 0x8000, patterns[i] & 0x8000) << target.name << " " << i;
                    } else {
                        ASSERT_EQ(static_cast<double>(wide[i]), expected) << target.name << " " << i;
                        ASSERT_EQ(std::signbit(wide[i]), (patterns[i] & 0x8000) != 0);
                        ASSERT_EQ(back[i], patterns[i]) << target.name;
                    }
                }
            }
        }
}

// Elements that do not fill a vector are rounded like all others, whatever rounding mode the caller has set.
TEST(Convert, AllElementsAreRoundedAlike) {
    std::fenv_t before{};
    ASSERT_EQ(std::fegetenv(&before), 0);
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    for (const Target& target : targets())
        for (const bool bfloat : {false, true})
            for (std::size_t count = 1; count < 70; ++count) {
                const float small = 3.05e-5F;  // between two subnormal numbers of float16
                const auto halves = narrowed(target, std::vector<float>(count, small), bfloat, 1);
                EXPECT_EQ(std::ranges::count(halves, halves.front()), static_cast<std::ptrdiff_t>(count))
                    << target.name;
                const auto wide = widened(target, std::vector<std::uint16_t>(count, 0x1ff), bfloat, 1);
                EXPECT_EQ(std::ranges::count(wide, wide.front()), static_cast<std::ptrdiff_t>(count)) << target.name;
            }
    std::fesetenv(&before);
}

// Numbers become the nearer neighbour, or the even one in a tie. Infinity counts as the neighbour after the largest
// number.
TEST(Convert, RoundsToTheNearestAndToEven) {
    for (const Target& target : targets())
        for (const bool bfloat : {false, true}) {
            const std::uint16_t infinity = bfloat ? 0x7f80 : 0x7c00;
            std::vector<float> in;
            std::vector<std::uint16_t> expected;
            for (std::uint16_t low = 0; low < infinity; ++low) {
                const auto high = static_cast<std::uint16_t>(low + 1);
                const double below = value_of(low, bfloat ? 8 : 5);
                const double above = high == infinity ? below + (below - value_of(low - 1, bfloat ? 8 : 5))
                                                      : value_of(high, bfloat ? 8 : 5);
                const auto middle = static_cast<float>((below + above) / 2);
                for (const float sign : {1.0F, -1.0F}) {
                    const auto bit = static_cast<std::uint16_t>(sign < 0 ? 0x8000 : 0);
                    in.insert(in.end(), {sign * std::nextafter(middle, 0.0F), sign * middle,
                                         sign * std::nextafter(middle, std::numeric_limits<float>::infinity())});
                    for (const std::uint16_t to : {low, low % 2 == 0 ? low : high, high})
                        expected.push_back(static_cast<std::uint16_t>(to | bit));
                }
            }
            in.insert(in.end(), {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()});
            expected.insert(expected.end(), {infinity, infinity});
            const auto got = narrowed(target, in, bfloat, 2);
            for (std::size_t i = 0; i < in.size(); ++i)
                ASSERT_EQ(got[i], expected[i]) << target.name << (bfloat ? " bfloat16 " : " float16 ") << in[i];
        }
}

TEST(Convert, KeepsEveryNaN) {
    for (const Target& target : targets())
        for (const bool bfloat : {false, true}) {
            const std::uint32_t bits[] = {0x7f800001, 0x7f80ffff, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
            std::vector<float> in;
            for (const std::uint32_t one : bits) in.push_back(std::bit_cast<float>(one));
            const auto got = narrowed(target, in, bfloat, 1);
            for (std::size_t i = 0; i < in.size(); ++i)
                EXPECT_TRUE(std::isnan(value_of(got[i], bfloat ? 8 : 5))) << target.name << " " << i;
        }
}

}  // namespace
}  // namespace vkrnn::cpu
