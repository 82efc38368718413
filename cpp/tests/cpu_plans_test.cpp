// Tests plans of all cells, for every instruction set of this processor, against plain loops.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "cpu/threads/contention.h"
#include "cpu_plans.h"
#include "fake_clock.h"
#include "polls.h"

namespace vkrnn::cpu {
namespace {

using namespace std::chrono_literals;

// Returns the allowed relative error of an activation.
template <class T>
constexpr double kNear = 6 * std::numeric_limits<T>::epsilon();

double plain(Activation activation, double x) {
    switch (activation) {
        case Activation::none: return x;
        case Activation::relu: return x > 0 ? x : 0;
        case Activation::tanh: return std::tanh(x);
        case Activation::sigmoid: return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
        case Activation::hard_sigmoid: return std::min(1.0, std::max(0.0, 0.2 * x + 0.5));
    }
    return 0;
}

template <class T>
void check_activation(const Target& target, Activation activation) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    Shape shape{1, 40, 0, 31};
    shape.I = shape.H;
    Spec spec = make_spec(CellKind::single_gate_rnn, shape, {Argument::source, Argument::recurrent_weight});
    spec.descriptor.activations[0] = activation;
    Arrays arrays;
    std::vector<double>& x = arrays[Argument::source];
    x = {0.0, -0.0, 1e-30, -1e-30, 1e-7, -1e-7, 0.6,  -0.6, 2.5,  -2.5,      86,
         -86, 88,   -88,   700,    -700, 709,   -709, 1e4,  -1e4, kInfinity, -kInfinity};
    for (Numbers numbers; x.size() < static_cast<std::size_t>(shape.N * shape.H);)
        x.push_back(numbers() * std::exp(8 * numbers() - 4));
    arrays[Argument::recurrent_weight].assign(static_cast<std::size_t>(shape.H * shape.H), 1.0);
    const auto results = run_plan<T>(target, spec, arrays);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double given = static_cast<double>(static_cast<T>(x[i])), expected = plain(activation, given);
        const auto got = static_cast<double>(results[0][i]);
        if (std::isinf(expected)) {
            EXPECT_EQ(got, expected);
        } else {
            // A subnormal result may be flushed to zero.
            const double tolerance =
                kNear<T> * std::abs(expected) + 4 * static_cast<double>(std::numeric_limits<T>::min());
            EXPECT_NEAR(got, expected, activation == Activation::hard_sigmoid ? kNear<T> : tolerance)
                << target.name << " " << name_of(activation) << " of " << given;
        }
    }
}

TEST(Activations, AgreeWithTheMathLibrary) {
    for (const Target& target : targets())
        for (const Activation activation :
             {Activation::none, Activation::relu, Activation::tanh, Activation::sigmoid, Activation::hard_sigmoid}) {
            check_activation<float>(target, activation);
            check_activation<double>(target, activation);
        }
}

TEST(Activations, PassOnNaN) {
    for (const Target& target : targets())
        for (const Activation activation :
             {Activation::none, Activation::relu, Activation::tanh, Activation::sigmoid, Activation::hard_sigmoid}) {
            Spec spec =
                make_spec(CellKind::single_gate_rnn, {1, 1, 9, 9}, {Argument::source, Argument::recurrent_weight});
            spec.descriptor.activations[0] = activation;
            Arrays arrays;
            arrays[Argument::source].assign(9, std::numeric_limits<double>::quiet_NaN());
            arrays[Argument::recurrent_weight].assign(81, 0.0);
            const auto floats = run_plan<float>(target, spec, arrays);
            for (const float value : floats[0])
                EXPECT_TRUE(std::isnan(value)) << target.name << " " << name_of(activation);
            const auto doubles = run_plan<double>(target, spec, arrays);
            for (const double value : doubles[0])
                EXPECT_TRUE(std::isnan(value)) << target.name << " " << name_of(activation);
        }
}

template <class T>
void check_forward(const Target& target, const Spec& spec, unsigned threads, double tolerance) {
    const Arrays arrays = make_arrays(spec);
    const auto expected = plain_output(spec, arrays);
    const auto output = run_plan<T>(target, spec, arrays, threads)[0];
    ASSERT_EQ(output.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(static_cast<double>(output[i]), expected[i], tolerance)
            << target.name << " " << name_of_case(spec) << " threads " << threads << " at " << i;
}

TEST(Forward, AgreesWithThePlainLoop) {
    for (const Target& target : targets())
        for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{4, 3, 7, 5}, Shape{5, 1, 33, 20}, Shape{3, 26, 9, 37}})
            for (const Spec& spec : all_cells(shape))
                for (const unsigned threads : {1U, 3U}) {
                    check_forward<float>(target, spec, threads, 2e-6);
                    check_forward<double>(target, spec, threads, 1e-13);
                }
}

// Adds the arguments of the gradients. `upstream` is the gradient of the output.
template <class T>
Arrays arguments_back(const Target& target, const Spec& spec, const Arrays& arrays,
                      const std::vector<double>& upstream) {
    const auto kept = run_plan<T>(target, spec, arrays);
    const auto doubles = [](const Aligned<T>& from) { return std::vector<double>(from.begin(), from.end()); };
    Arrays back = arrays;
    back[Argument::source_gradient] = upstream;
    back[Argument::output_fwd] = doubles(kept.front());
    back[Argument::cell_output_fwd] = doubles(kept.at(1));
    back[Argument::z_state] = doubles(kept.back());
    return back;
}

// Returns the gradient of the sum of output * upstream by finite differences.
double slope(const Spec& spec, Arrays arrays, Argument argument, std::size_t i, const std::vector<double>& upstream) {
    constexpr double kStep = 1e-5;
    double sums[2];
    const double middle = arrays[argument][i];
    for (const int side : {0, 1}) {
        arrays[argument][i] = middle + (side == 0 ? -kStep : kStep);
        const auto output = plain_output(spec, arrays);
        sums[side] = 0;
        for (std::size_t j = 0; j < output.size(); ++j) sums[side] += output[j] * upstream[j];
    }
    return (sums[1] - sums[0]) / (2 * kStep);
}

TEST(Backward, AgreesWithDifferencesOfThePlainLoop) {
    for (const Spec& spec : all_cells({3, 2, 3, 5})) {
        const Arrays arrays = make_arrays(spec);
        const auto random = Numbers(5).array<double>(spec.T * spec.N * spec.H);
        const std::vector<double> upstream(random.begin(), random.end());
        const Spec back = gradients_of(spec);
        std::vector<double> expected;
        std::vector<std::string> places;
        for (const Argument argument : spec.cell().gradient_order) {
            if (!spec.has(argument)) continue;
            for (std::size_t i = 0; i < arrays.at(argument).size(); ++i) {
                expected.push_back(slope(spec, arrays, argument, i, upstream));
                places.push_back(std::string(name_of(argument)) + " " + std::to_string(i));
            }
        }
        const auto check = [&](const auto& results, const Target& target, double tolerance) {
            std::size_t at = 0;
            for (const auto& result : results)
                for (const auto value : result) {
                    ASSERT_LT(at, expected.size());
                    EXPECT_NEAR(static_cast<double>(value), expected[at], tolerance)
                        << target.name << " " << name_of_case(spec) << " " << places[at];
                    ++at;
                }
            EXPECT_EQ(at, expected.size());
        };
        for (const Target& target : targets())
            for (const unsigned threads : {1U, 2U}) {
                check(run_plan<double>(target, back, arguments_back<double>(target, spec, arrays, upstream), threads),
                      target, 1e-8);
                check(run_plan<float>(target, back, arguments_back<float>(target, spec, arrays, upstream), threads),
                      target, 1e-5);
            }
    }
}

template <class T>
void check_same_bits(const Target& target, const Spec& spec) {
    const Arrays arrays = make_arrays(spec);
    const auto random = Numbers(5).array<double>(spec.T * spec.N * spec.D() * spec.H);
    const Arrays back = arguments_back<T>(target, spec, arrays, {random.begin(), random.end()});
    const auto output = run_plan<T>(target, spec, arrays);
    const auto gradients = run_plan<T>(target, gradients_of(spec), back);
    for (const unsigned threads : {2U, 3U, 5U}) {
        EXPECT_TRUE(run_plan<T>(target, spec, arrays, threads) == output)
            << target.name << " " << name_of_case(spec) << " threads " << threads;
        EXPECT_TRUE(run_plan<T>(target, gradients_of(spec), back, threads) == gradients)
            << target.name << " " << name_of_case(spec) << " back, threads " << threads;
    }
    EXPECT_GE(idle_threads(), 1u);
}

TEST(Threads, TheirNumberChangesNoBit) {
    for (const Target& target : targets())
        for (Spec spec : all_cells({6, 10, 21, 99}))
            for (const bool bidirectional : {false, true}) {
                spec.descriptor.set(Flag::bidirectional, bidirectional);
                check_same_bits<float>(target, spec);
                check_same_bits<double>(target, spec);
            }
}

// A single row has special products.
TEST(Threads, TheirNumberChangesNoBitOfASingleRow) {
    for (const Target& target : targets())
        for (const Spec& spec : all_cells({20, 1, 40, 200})) check_same_bits<float>(target, spec);
}

// When other programs occupy the processors, calls lose time at barriers, and a team splits up in the middle of a loop.
TEST(Threads, ContentionChangesNoBit) {
    const test::PollsAlways polls_always;
    pool_contention.end();
    const test::FakeClock clock;  // other programs take no time, so that teams do not split up for them
    const bool may_split = [] {
        const Threads allowed(3);
        return members_of(3) > 1;  // unless there is a CPU quota
    }();
    for (const Spec& spec : all_cells({100, 1, 40, 200})) {
        const Target& target = targets().front();
        const Arrays arrays = make_arrays(spec);
        const auto output = run_plan<float>(target, spec, arrays);
        for (int part = 0; part < 12; ++part) {
            const int lost_at = part / 4 * 20 + 1, asked = part % 4;  // after any phase of a step
            int polls = 0;
            bool splits = false;
            const auto lose = [&] {
                if (++polls == lost_at) pool_contention.add(1s, 1s, 0s, Contention::Clock::now());
                // A team that splits up begins to count anew.
                splits = splits || (polls > lost_at && !pool_contention.shows({}, {}));
                return false;
            };
            EXPECT_TRUE(run_plan<float>(target, spec, arrays, 3, lose, asked) == output)
                << name_of_case(spec) << ", poll " << lost_at << ", " << asked;
            EXPECT_EQ(splits, may_split) << name_of_case(spec) << ", poll " << lost_at << ", " << asked;
            pool_contention.end();
        }
    }
}

}  // namespace
}  // namespace vkrnn::cpu
