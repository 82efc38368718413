// Cells that the package does not have run on every device and with every strategy, forward against their equations and
// backward against finite differences of these. Each is a row, a file and its equations in this folder, and nothing
// else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "equations.h"
#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn::test {
namespace {

using enum Argument;

using Arrays = std::map<Argument, std::vector<double>>;

struct Size {
    std::int64_t T, N, I, H;
};

// A forward call, for training, without its numbers.
struct Problem {
    Descriptor descriptor;
    Size sizes;
    std::vector<Argument> given;

    [[nodiscard]] const Cell& row() const { return cell(descriptor.cell); }
    [[nodiscard]] bool has(Argument argument) const { return std::ranges::find(given, argument) != given.end(); }
    [[nodiscard]] std::int64_t G() const { return row().gate_count(); }
    [[nodiscard]] std::int64_t D() const { return descriptor.has(Flag::bidirectional) ? 2 : 1; }
    [[nodiscard]] std::int64_t C() const { return row().cell_states; }
};

std::vector<std::int64_t> shape_of(const Problem& problem, Argument argument) {
    const auto& [T, N, I, H] = problem.sizes;
    const ShapeRule& rule = shape_rule(argument, problem.has(input_weight));
    std::vector<std::int64_t> shape;
    for (const Axis axis : (problem.D() == 2 ? rule.bidirectional : rule.unidirectional).front()) {
        switch (axis) {
            case Axis::T: shape.push_back(T); break;
            case Axis::N: shape.push_back(N); break;
            case Axis::I: shape.push_back(I); break;
            case Axis::H: shape.push_back(H); break;
            case Axis::DH: shape.push_back(problem.D() * H); break;
            case Axis::GH: shape.push_back(problem.G() * H); break;
            case Axis::DGH: shape.push_back(problem.D() * problem.G() * H); break;
            case Axis::DCH: shape.push_back(problem.D() * problem.C() * H); break;
            case Axis::D: shape.push_back(problem.D()); break;
            case Axis::one: shape.push_back(1); break;
        }
    }
    return shape;
}

std::size_t elements_of(const std::vector<std::int64_t>& shape) {
    std::int64_t elements = 1;
    for (const std::int64_t size : shape) elements *= size;
    return static_cast<std::size_t>(elements);
}

// Numbers between -1 and 1.
class Numbers {
public:
    double operator()() {
        state_ = state_ * 6364136223846793005U + 1442695040888963407U;
        return static_cast<double>(state_ >> 33) / static_cast<double>(1U << 30) - 1.0;
    }
    std::vector<double> operator()(std::size_t count, double middle, double width) {
        std::vector<double> all(count);
        for (double& number : all) number = middle + width * (*this)();
        return all;
    }

private:
    std::uint64_t state_ = 1;
};

// Initial cell states are positive: a cell may divide by one.
Arrays make_arrays(const Problem& problem) {
    Numbers numbers;
    Arrays arrays;
    for (const Argument argument : problem.given) {
        const std::size_t count = elements_of(shape_of(problem, argument));
        arrays[argument] = argument == init_cell ? numbers(count, 1.0, 0.5) : numbers(count, 0.0, 0.8);
        if (argument == lengths)
            for (std::size_t n = 0; n < count; ++n)
                arrays[argument][n] = static_cast<double>(1 + (n + 1) % static_cast<std::size_t>(problem.sizes.T));
    }
    return arrays;
}

// What a loss multiplies: the output of every step, and the states after the last one.
Arrays make_upstream(const Problem& problem) {
    Numbers numbers;
    Arrays upstream;
    for (const Parameter& parameter : problem.row().gradients) {
        const Argument argument = parameter.argument;
        if (argument == source_gradient || argument == state_gradient || argument == cell_gradient)
            upstream[argument] = numbers(elements_of(shape_of(problem, argument)), 0.0, 1.0);
    }
    return upstream;
}

// From the cell's equations.
struct Expected {
    std::vector<double> output;  // [T, N, DH], zeros past the end of a batch row
    double loss = 0;
};

Expected run_equations(const Problem& problem, const Arrays& arrays, const Arrays& upstream) {
    const auto& [T, N, I, H] = problem.sizes;
    const std::int64_t D = problem.D(), G = problem.G(), C = problem.C();
    const auto at = [&](const Arrays& from, Argument argument, std::int64_t i, double absent) {
        const auto found = from.find(argument);
        return found == from.end() ? absent : found->second.at(static_cast<std::size_t>(i));
    };
    Expected expected{std::vector<double>(static_cast<std::size_t>(T * N * D * H)), 0};
    for (std::int64_t d = 0; d < D; ++d)
        for (std::int64_t n = 0; n < N; ++n) {
            const auto end = static_cast<std::int64_t>(at(arrays, lengths, n, static_cast<double>(T)));
            std::vector<Units> states(static_cast<std::size_t>(1 + C), Units(static_cast<std::size_t>(H)));
            for (std::int64_t j = 0; j < H; ++j) {
                const auto unit = static_cast<std::size_t>(j);
                states[0][unit] = at(arrays, init_state, (n * D + d) * H + j, 0);
                for (std::int64_t s = 0; s < C; ++s)
                    states[static_cast<std::size_t>(1 + s)][unit] =
                        at(arrays, init_cell, ((n * D + d) * C + s) * H + j, 0);
            }
            for (std::int64_t k = 0; k < end; ++k) {
                const bool backwards = D == 2 ? d == 1 : problem.descriptor.has(Flag::reverse);
                const std::int64_t read = backwards ? end - 1 - k : k, written = D == 2 ? read : k;
                const auto slot = [&](std::size_t gate) {
                    const bool other = problem.descriptor.has(Flag::other_gate_order);
                    return std::int64_t{other ? problem.row().other_slots.at(gate) : problem.row().slots.at(gate)};
                };
                const auto projected = [&](std::size_t gate) {
                    Units sums(static_cast<std::size_t>(H));
                    for (std::int64_t j = 0; j < H; ++j) {
                        const std::int64_t column = (d * G + slot(gate)) * H + j;
                        double sum = at(arrays, bias, column, 0);
                        if (!problem.has(input_weight)) {
                            sum += at(arrays, source, (read * N + n) * I + column, 0);
                        } else {
                            for (std::int64_t i = 0; i < I; ++i)
                                sum += at(arrays, source, (read * N + n) * I + i, 0) *
                                       at(arrays, input_weight, column * I + i, 0);
                        }
                        sums[static_cast<std::size_t>(j)] = sum;
                    }
                    return sums;
                };
                const auto recur = [&](std::size_t gate, const Units& operand) {
                    Units sums(static_cast<std::size_t>(H));
                    for (std::int64_t j = 0; j < H; ++j)
                        for (std::int64_t i = 0; i < H; ++i)
                            sums[static_cast<std::size_t>(j)] +=
                                operand[static_cast<std::size_t>(i)] *
                                at(arrays, recurrent_weight, ((d * G + slot(gate)) * H + j) * H + i, 0);
                    return sums;
                };
                Units operand = states[0];
                const std::int64_t row = (written * N + n) * D * H + d * H;
                for (std::int64_t j = 0; j < H; ++j)
                    operand[static_cast<std::size_t>(j)] *= at(arrays, mask, row + j, 1);
                const bool scales_product = problem.row().candidate && problem.row().candidate->scales_product &&
                                            problem.descriptor.has(*problem.row().candidate->scales_product);
                make_step(problem.row().name, {scales_product, operand, projected, recur, states});
                for (std::int64_t j = 0; j < H; ++j) {
                    const double h = states[0][static_cast<std::size_t>(j)];
                    expected.output[static_cast<std::size_t>(row + j)] = h;
                    expected.loss += h * at(upstream, source_gradient, row + j, 0);
                }
            }
            for (std::int64_t j = 0; j < H; ++j) {
                const auto unit = static_cast<std::size_t>(j);
                expected.loss += states[0][unit] * at(upstream, state_gradient, (n * D + d) * H + j, 0);
                for (std::int64_t s = 0; s < C; ++s)
                    expected.loss += states[static_cast<std::size_t>(1 + s)][unit] *
                                     at(upstream, cell_gradient, ((n * D + d) * C + s) * H + j, 0);
            }
        }
    return expected;
}

// By finite differences, in the order of the results.
std::vector<double> slopes(const Problem& problem, Arrays arrays, const Arrays& upstream) {
    constexpr double kStep = 1e-5;
    std::vector<double> all;
    for (const Argument argument : problem.row().gradient_order) {
        if (!problem.has(argument)) continue;
        for (double& number : arrays.at(argument)) {
            const double middle = number;
            number = middle + kStep;
            const double above = run_equations(problem, arrays, upstream).loss;
            number = middle - kStep;
            const double below = run_equations(problem, arrays, upstream).loss;
            number = middle;
            all.push_back((above - below) / (2 * kStep));
        }
    }
    return all;
}

// An argument's bytes as a device takes them.
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

// A call as a user's: checked, planned, run. Nothing where what is fixed of the strategies does not fit it.
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
    std::vector<InputOperand> inputs;
    std::vector<ResultOperand> results;
    for (const auto& [argument, buffer] : plan->inputs) {
        given.push_back(bytes_of(arrays.at(argument), argument, dtype));
        EXPECT_EQ(given.back().size(), plan->buffers.at(buffer).bytes) << name_of(argument);
    }
    for (std::size_t i = 0; i < plan->results.size(); ++i) {
        made.emplace_back(plan->buffers.at(plan->results[i]).bytes, std::byte{0xff});
        EXPECT_EQ(made.back().size(), elements_of(call.results.at(i).shape) * storage_bytes(dtype));
    }
    for (const auto& bytes : given) inputs.push_back({bytes.data()});
    for (auto& bytes : made) results.push_back({bytes.data()});
    device.run(plan, inputs, results, true, "test", {});
    std::vector<std::vector<double>> numbers;
    for (const auto& bytes : made) numbers.push_back(numbers_of(bytes, dtype));
    return numbers;
}

// Of a number as large as 1 or, beyond that, as a part of it.
void expect_near(const std::vector<double>& got, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i]))) << what << " at " << i;
}

// Forward and back on a device, of which `usual` has no strategy fixed. Returns how many of the two calls fit.
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

std::vector<Named> problems() {
    std::vector<Named> all;
    for (const Cell& row : cells()) {
        const auto add = [&](const std::string& name, Size sizes, std::initializer_list<Flag> flags,
                             std::initializer_list<Argument> without = {}) {
            Problem problem{default_descriptor(row.kind), sizes, {}};
            problem.descriptor.set(Flag::training, true);
            for (const Flag flag : flags) problem.descriptor.set(flag, true);
            for (const Parameter& parameter : row.forward)
                if (std::ranges::find(without, parameter.argument) == without.end())
                    problem.given.push_back(parameter.argument);
            if (!problem.has(input_weight)) problem.sizes.I = problem.D() * problem.G() * sizes.H;
            all.push_back({std::string(row.name) + " " + name, problem});
        };
        const auto has = [&](Flag flag) {
            return std::ranges::find(row.properties, std::optional(flag), &Property::flag) != row.properties.end();
        };
        add("with nothing but weights", {4, 3, 2, 5}, {}, {bias, init_state, init_cell, mask, lengths});
        if (has(Flag::other_gate_order)) {
            add("reversed, in the other order", {4, 3, 2, 5}, {Flag::reverse, Flag::other_gate_order}, {input_weight});
        } else {
            add("reversed", {4, 3, 2, 5}, {Flag::reverse}, {input_weight});
        }
        add("of many units", {3, 2, 3, 17}, {}, {lengths});
        add("in both directions with everything", {5, 4, 3, 6}, {Flag::bidirectional});
        if (has(Flag::reset_after))
            add("with a scaled product, in both directions with everything", {5, 4, 3, 6},
                {Flag::reset_after, Flag::bidirectional});
    }
    return all;
}

// The strategies of a device for the time loop, fixed one after the other, steps also as a GPU runs them.
std::vector<StrategyChoice> choices(const Profile& profile) {
    std::vector<StrategyChoice> all;
    for (const std::string& schedule : list_strategies(profile).schedule) {
        all.push_back({schedule, "", {}});
        if (schedule == "steps")
            all.push_back({schedule, "", {{"lanes", std::min(8U, profile.subgroup_size)}, {"rows", 4}}});
    }
    return all;
}

// How many of the two calls must fit: on matrix units only float32, forward where h has bounds; in one dispatch only
// what has one phase. Sizes that small fit wherever it runs.
int least_fitting(const std::string& schedule, const Problem& problem, Dtype dtype) {
    const bool matrices = schedule == "matrices" || schedule == "persistent";
    const bool one_dispatch = schedule == "slices" || schedule == "persistent";
    const bool two_phases = problem.row().candidate && !problem.descriptor.has(Flag::reset_after);
    if ((matrices || one_dispatch) && dtype == Dtype::float64) return 0;
    if (one_dispatch && two_phases) return 0;
    return matrices && !problem.row().bounds ? 1 : 2;
}

TEST(MoreCells, FollowTheirEquationsWithEveryStrategy) {
    const std::vector<Named> all = problems();
    std::vector<std::vector<double>> gradients;
    for (const auto& [name, problem] : all)
        gradients.push_back(slopes(problem, make_arrays(problem), make_upstream(problem)));
    const std::vector<Profile> profiles = list_devices();
    ASSERT_FALSE(profiles.empty());
    for (std::size_t index = 0; index < profiles.size(); ++index) {
        const auto usual = Device::open(index);
        for (const StrategyChoice& choice : choices(profiles[index])) {
            const auto device = Device::open(index, choice);
            for (const Dtype dtype : {Dtype::float32, Dtype::float64}) {
                if (dtype == Dtype::float64 && !profiles[index].float64) continue;
                for (std::size_t i = 0; i < all.size(); ++i) {
                    const auto& [name, problem] = all[i];
                    std::string where = profiles[index].name + ", " + choice.schedule;
                    where +=
                        (choice.sizes.empty() ? ", " : " with lanes, ") + std::string(name_of(dtype)) + ", " + name;
                    EXPECT_GE(check(*device, *usual, problem, dtype, gradients[i], where),
                              least_fitting(choice.schedule, problem, dtype))
                        << where;
                }
            }
        }
    }
}

}  // namespace
}  // namespace vkrnn::test
