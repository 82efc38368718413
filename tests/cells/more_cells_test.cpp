// Runs cells that the package does not have on every device but CUDA's, and with every strategy. Compares their output
// with their equations and their gradients with finite differences of these. Such a cell needs a row, a file and
// equations in this folder, and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include "problem.h"
#include "scale.h"
#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn::test {
namespace {

// Returns an argument's bytes as a device takes them.
std::vector<std::byte> bytes_of(const std::vector<double>& numbers, Argument argument, Dtype dtype) {
    std::vector<std::byte> bytes;
    const auto append = [&](auto value) {
        const auto* first = reinterpret_cast<const std::byte*>(&value);
        bytes.insert(bytes.end(), first, first + sizeof(value));
    };
    for (const double number : numbers) {
        if (argument == lengths) {
            append(static_cast<std::int32_t>(number));
        } else if (dtype == Dtype::float64) {
            append(number);
        } else {
            append(static_cast<float>(number));
        }
    }
    return bytes;
}

std::vector<double> numbers_of(const std::vector<std::byte>& bytes, Dtype dtype) {
    std::vector<double> numbers(bytes.size() / storage_bytes(dtype));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (dtype == Dtype::float64) {
            std::memcpy(&numbers[i], bytes.data() + i * sizeof(double), sizeof(double));
        } else {
            float number = 0;
            std::memcpy(&number, bytes.data() + i * sizeof(float), sizeof(float));
            numbers[i] = number;
        }
    }
    return numbers;
}

// Checks, plans and runs a call, as a user's call would be. Returns nothing if the fixed strategies cannot run it.
std::optional<std::vector<std::vector<double>>> run(Device& device, const Problem& problem, bool gradients,
                                                    const Arrays& arrays, Dtype dtype) {
    Arguments infos;
    for (const auto& [argument, numbers] : arrays) {
        TensorInfo info{std::string(argument == lengths ? "int32" : name_of(dtype)), shape_of(problem, argument), {}};
        if (argument == lengths) info.integers.assign(numbers.begin(), numbers.end());
        infos[argument] = std::move(info);
    }
    const Call call = check_call(problem.descriptor, gradients, infos);
    std::shared_ptr<const Plan> plan;
    try {
        plan = device.plan(call.spec);
    } catch (const NotImplementedError&) {
        return std::nullopt;
    }
    std::vector<std::vector<std::byte>> given, made;
    std::vector<InputLocation> inputs;
    std::vector<ResultLocation> results;
    for (const auto& [argument, buffer] : plan->inputs) {
        given.push_back(bytes_of(arrays.at(argument), argument, dtype));
        EXPECT_EQ(given.back().size(), plan->buffers.at(buffer).bytes) << name_of(argument);
    }
    for (std::size_t i = 0; i < plan->results.size(); ++i) {
        made.emplace_back(plan->buffers.at(plan->results[i]).bytes, std::byte{0xff});
        EXPECT_EQ(made.back().size(), count_of(call.results.at(i).shape) * storage_bytes(dtype));
    }
    for (const auto& bytes : given) inputs.push_back({bytes.data()});
    for (auto& bytes : made) results.push_back({bytes.data()});
    device.run(plan, inputs, results, true, "test", {});
    std::vector<std::vector<double>> numbers;
    for (const auto& bytes : made) numbers.push_back(numbers_of(bytes, dtype));
    return numbers;
}

// The tolerance is absolute for expected values up to 1, and relative beyond.
void expect_near(const std::vector<double>& got, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i]))) << what << " at " << i;
}

// Checks a forward and a gradient call on a device. `usual` is the same device without a fixed strategy; it makes the
// training state if `device` cannot run the forward call. Returns how many of the two calls `device` could run.
int check(Device& device, Device& usual, const Problem& problem, Dtype dtype, const std::vector<double>& gradients,
          const std::string& where) {
    const Arrays arrays = make_arrays(problem), upstream = make_upstream(problem);
    const bool doubles = dtype == Dtype::float64;
    int fitting = 0;
    const auto output = run_equations(problem, arrays, upstream).output;
    auto kept = run(device, problem, false, arrays, dtype);
    if (kept) {
        ++fitting;
        expect_near(kept->front(), output, doubles ? 1e-13 : 3e-6, where + ": output");
    } else {
        kept = run(usual, problem, false, arrays, dtype);
    }
    Arrays back = arrays;
    back.insert(upstream.begin(), upstream.end());
    for (const Parameter& parameter : problem.row().gradients) {
        if (parameter.argument == z_state) back[z_state] = kept->back();
        if (parameter.argument == output_fwd) back[output_fwd] = kept->front();
        if (parameter.argument == cell_output_fwd) back[cell_output_fwd] = kept->at(1);
    }
    if (const auto results = run(device, problem, true, back, dtype)) {
        ++fitting;
        std::vector<double> all;
        for (const auto& result : *results) all.insert(all.end(), result.begin(), result.end());
        expect_near(all, gradients, doubles ? 1e-8 : 2e-5, where + ": gradients");
    }
    return fitting;
}

struct Named {
    std::string name;
    Problem problem;
};

// Sets the floating-point options to values that are not their defaults and that float32 cannot represent exactly.
void set_numbers(Descriptor& descriptor) {
    for (const Property& property : cell(descriptor.cell).properties)
        if (const auto* number = std::get_if<NumberProperty>(&property.kind))
            descriptor.numbers.at(number->slot) = number->least + 0.3 * (number->most - number->least);
}

std::vector<Named> problems(const Cell& row) {
    std::vector<Named> all;
    const auto add = [&](const std::string& name, Size sizes, std::initializer_list<Flag> flags,
                         std::initializer_list<Argument> without = {}) {
        Problem problem{default_descriptor(row.kind), sizes, {}};
        problem.descriptor.set(Flag::training, true);
        for (const Flag flag : flags) problem.descriptor.set(flag, true);
        if (flags.size() != 0) set_numbers(problem.descriptor);
        for (const Parameter& parameter : row.forward)
            if (std::ranges::find(without, parameter.argument) == without.end())
                problem.given.push_back(parameter.argument);
        if (!problem.has(input_weight)) problem.sizes.I = problem.D() * problem.G() * sizes.H;
        all.push_back({std::string(row.name) + " " + name, problem});
    };
    const auto has = [&](Flag flag) {
        return std::ranges::any_of(row.properties, [&](const Property& property) {
            return std::holds_alternative<Flag>(property.kind) && std::get<Flag>(property.kind) == flag;
        });
    };
    add("with zoneout, in both directions with everything", {5, 4, 3, 6}, {Flag::bidirectional}, {leak});
    add("with a leak", {4, 3, 2, 5}, {Flag::reverse}, {zoneout_mask, zoneout_cell_mask});
    const std::size_t blends = all.size();
    add("with nothing but weights", {4, 3, 2, 5}, {},
        {bias, init_state, init_cell, mask, lengths, reset, reset_state, reset_cell});
    if (has(Flag::other_gate_order)) {
        add("reversed, in the other order", {4, 3, 2, 5}, {Flag::reverse, Flag::other_gate_order}, {input_weight});
    } else {
        add("reversed", {4, 3, 2, 5}, {Flag::reverse}, {input_weight});
    }
    add("of many units", {3, 2, 3, 17}, {}, {lengths});
    add("in both directions with everything", {5, 4, 3, 6}, {Flag::bidirectional});
    if (row.cell_states > 0) {
        add("with gradients of all cell states", {4, 3, 2, 5}, {Flag::bidirectional}, {mask});
        all.back().problem.each_cell = true;
    }
    if (has(Flag::reset_after))
        add("with a scaled product, in both directions with everything", {5, 4, 3, 6},
            {Flag::reset_after, Flag::bidirectional});
    for (std::size_t i = blends; i < all.size(); ++i)
        std::erase_if(all[i].problem.given, [](Argument argument) {
            return argument == zoneout_mask || argument == zoneout_cell_mask || argument == leak;
        });
    return all;
}

// Returns a device's strategies for the time loop, each to be fixed in turn. "steps" also appears with a GPU's
// parameters.
std::vector<StrategyChoice> choices(const Profile& profile) {
    std::vector<StrategyChoice> all;
    for (const std::string& schedule : list_strategies(profile).schedule) {
        all.push_back({schedule, "", {}});
        if (schedule == "steps")
            all.push_back({schedule, "", {{"lanes", std::min(8U, profile.subgroup_size)}, {"rows", 4}}});
    }
    return all;
}

// Returns how many of the two calls must run. Matrix units take only float32, and forward calls only if h has bounds,
// which it has not with factors of resets or blends. Slices have no blends.
// Strategies with one dispatch take only cells with one phase. Calls as small as these run wherever the strategy does.
int least_fitting(const std::string& schedule, const Problem& problem, Dtype dtype) {
    const bool matrices = schedule == "matrices" || schedule == "persistent";
    const bool one_dispatch = schedule == "slices" || schedule == "persistent";
    const bool two_phases = problem.row().candidate && !problem.descriptor.has(Flag::reset_after);
    if ((matrices || one_dispatch) && dtype == Dtype::float64) return 0;
    if (one_dispatch && two_phases) return 0;
    const bool blends = problem.has(zoneout_mask) || problem.has(leak);
    if (schedule == "slices" && blends) return 0;
    return matrices && (!problem.row().bounds || problem.has(reset) || blends) ? 1 : 2;
}

class EachCell : public testing::TestWithParam<std::size_t> {};

// float64 runs with the first strategy only, because its kernels differ from float32's only in the type. A short run
// has every third problem, by turns of the strategies.
TEST_P(EachCell, FollowsItsEquationsWithEveryStrategy) {
    const std::vector<Named> all = problems(cells()[GetParam()]);
    std::vector<std::vector<double>> gradients;
    for (const auto& [name, problem] : all)
        gradients.push_back(slopes(problem, make_arrays(problem), make_upstream(problem)));
    const std::vector<Profile> profiles = list_devices();
    ASSERT_FALSE(profiles.empty());
    for (std::size_t index = 0; index < profiles.size(); ++index) {
        if (profiles[index].backend == Backend::cuda) continue;  // the core has the CUDA sources of its own cells only
        const auto usual = Device::open(index);
        const std::vector<StrategyChoice> strategies = choices(profiles[index]);
        for (std::size_t strategy = 0; strategy < strategies.size(); ++strategy) {
            const StrategyChoice& choice = strategies[strategy];
            const auto device = Device::open(index, choice);
            const bool in_float64 = strategy == 0 && profiles[index].float64;
            for (const Dtype dtype : {Dtype::float32, Dtype::float64}) {
                if (dtype == Dtype::float64 && !in_float64) continue;
                for (std::size_t i = 0; i < all.size(); ++i) {
                    if (!full() && (i + strategy) % 3 != 0) continue;
                    const auto& [name, problem] = all[i];
                    std::string where = profiles[index].name + ", " + choice.schedule;
                    where += (choice.parameters.empty() ? ", " : " with lanes, ") + std::string(name_of(dtype)) + ", " +
                             name;
                    EXPECT_GE(check(*device, *usual, problem, dtype, gradients[i], where),
                              least_fitting(choice.schedule, problem, dtype))
                        << where;
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(MoreCells, EachCell, testing::Range(std::size_t{0}, cells().size()),
                         [](const auto& index) { return std::string(cells()[index.param].name); });

TEST(MoreCells, TakeNumbersInTheirRangeOnly) {
    const Problem problem{
        default_descriptor(cells().front().kind), {2, 1, 3, 4}, {source, recurrent_weight, input_weight}};
    Arguments infos;
    for (const Argument argument : problem.given) infos[argument] = {"float32", shape_of(problem, argument), {}};
    for (const double number : {-0.25, 1.5, std::nan("")}) {
        Descriptor descriptor = problem.descriptor;
        descriptor.numbers[0] = number;
        std::ostringstream message;
        message << "[mgu] descriptor.zoneout: expected 0 to 1, got " << number;
        try {
            check_call(descriptor, false, infos);
            ADD_FAILURE() << number;
        } catch (const ValueError& error) {
            EXPECT_EQ(std::string(error.what()), message.str());
        }
    }
    for (const double number : {0.0, 1.0}) {
        Descriptor descriptor = problem.descriptor;
        descriptor.numbers[0] = number;
        EXPECT_EQ(check_call(descriptor, false, infos).spec.descriptor.numbers[0], number);
    }
}

}  // namespace
}  // namespace vkrnn::test
