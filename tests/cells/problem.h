// Forward calls of the cells in rows.cpp: their input arrays, their output computed by the equations, and their
// gradients computed by finite differences.
#pragma once

#include <algorithm>
#include <map>

#include "equations.h"
#include "vkrnn/spec.h"

namespace vkrnn::test {

using enum Argument;

using Arrays = std::map<Argument, std::vector<double>>;

struct Size {
    std::int64_t T, N, I, H;
};

// A forward call for training, without its input arrays.
struct Problem {
    Descriptor descriptor;
    Size sizes;
    std::vector<Argument> given;
    bool each_cell = false;  // whether the gradient of the cell states has a row for every step

    [[nodiscard]] const Cell& row() const { return cell(descriptor.cell); }
    [[nodiscard]] bool has(Argument argument) const { return std::ranges::find(given, argument) != given.end(); }
    [[nodiscard]] std::int64_t G() const { return row().gate_count(); }
    [[nodiscard]] std::int64_t D() const { return descriptor.has(Flag::bidirectional) ? 2 : 1; }
    [[nodiscard]] std::int64_t C() const { return row().cell_states; }
};

inline TensorShape shape_of(const Problem& problem, Argument argument) {
    const auto& [T, N, I, H] = problem.sizes;
    const ShapeRule& rule = shape_rule(argument, problem.has(input_weight));
    const auto& accepted = problem.D() == 2 ? rule.bidirectional : rule.unidirectional;
    const bool is_blend = argument == zoneout_mask || argument == zoneout_cell_mask || argument == leak;
    const bool is_largest = is_blend || (argument == cell_gradient && problem.each_cell);
    TensorShape shape;
    for (const Axis axis : is_largest ? accepted.back() : accepted.front()) {
        switch (axis) {
            case Axis::T: shape.push_back(T); break;
            case Axis::N: shape.push_back(N); break;
            case Axis::I:
            case Axis::head_features: shape.push_back(I); break;
            case Axis::H:
            case Axis::head_units: shape.push_back(H); break;
            case Axis::DH: shape.push_back(problem.D() * H); break;
            case Axis::GH: shape.push_back(problem.G() * H); break;
            case Axis::CH: shape.push_back(problem.C() * H); break;
            case Axis::DGH: shape.push_back(problem.D() * problem.G() * H); break;
            case Axis::DCH: shape.push_back(problem.D() * problem.C() * H); break;
            case Axis::D: shape.push_back(problem.D()); break;
            case Axis::one: shape.push_back(1); break;
        }
    }
    return shape;
}

inline std::size_t count_of(const TensorShape& shape) { return static_cast<std::size_t>(elements_of(shape)); }

// A generator of pseudorandom numbers between -1 and 1.
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

// Factors of resets and parts of new states are from 0 to 1.
inline Arrays make_arrays(const Problem& problem) {
    Numbers numbers;
    Arrays arrays;
    for (const Argument argument : problem.given) {
        const std::size_t count = count_of(shape_of(problem, argument));
        const bool is_factor =
            argument == reset || argument == zoneout_mask || argument == zoneout_cell_mask || argument == leak;
        arrays[argument] = numbers(count, is_factor ? 0.5 : 0.0, is_factor ? 0.5 : 0.8);
        if (argument == lengths)
            for (std::size_t n = 0; n < count; ++n)
                arrays[argument][n] = static_cast<double>(2 * n % static_cast<std::size_t>(problem.sizes.T + 1));
    }
    return arrays;
}

// Returns the weights of the loss, which is a weighted sum of all outputs and of the states after the last step, or of
// the cell states of all steps. These weights are also the upstream gradients.
inline Arrays make_upstream(const Problem& problem) {
    Numbers numbers;
    Arrays upstream;
    for (const Parameter& parameter : problem.row().gradients) {
        const Argument argument = parameter.argument;
        if (argument == source_gradient || argument == state_gradient || argument == cell_gradient)
            upstream[argument] = numbers(count_of(shape_of(problem, argument)), 0.0, 1.0);
    }
    return upstream;
}

// What a call must return according to the cell's equations.
struct Expected {
    std::vector<double> output;  // [T, N, DH]; zeros past the end of a batch row
    double loss = 0;
};

inline Expected run_equations(const Problem& problem, const Arrays& arrays, const Arrays& upstream) {
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
            // The part of the loss of unit j's cell states, whose weights begin at row `first` of H.
            const auto of_cells = [&](std::int64_t j, std::int64_t first) {
                double sum = 0;
                for (std::int64_t s = 0; s < C; ++s)
                    sum += states[static_cast<std::size_t>(1 + s)][static_cast<std::size_t>(j)] *
                           at(upstream, cell_gradient, (first + s) * H + j, 0);
                return sum;
            };
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
                // Row t of a reset belongs between source rows t - 1 and t.
                if (const std::int64_t edge = d == 0 ? written : written + 1; k > 0 || d == 0)
                    for (std::int64_t s = 0; s <= C; ++s)
                        for (std::int64_t j = 0; j < H; ++j) {
                            const double factor = at(arrays, reset, edge * N + n, 1);
                            const double start = s == 0 ? at(arrays, reset_state, (n * D + d) * H + j, 0)
                                                        : at(arrays, reset_cell, ((n * D + d) * C + s - 1) * H + j, 0);
                            double& state = states[static_cast<std::size_t>(s)][static_cast<std::size_t>(j)];
                            state = factor * state + (1 - factor) * start;
                        }
                Units operand = states[0];
                const std::int64_t row = (written * N + n) * D * H + d * H;
                for (std::int64_t j = 0; j < H; ++j)
                    operand[static_cast<std::size_t>(j)] *= at(arrays, mask, row + j, 1);
                const bool scales_product = problem.row().candidate && problem.row().candidate->scales_product &&
                                            problem.descriptor.has(*problem.row().candidate->scales_product);
                const std::vector<Units> old = states;
                make_step(problem.row().name, {problem.descriptor, scales_product, operand, projected, recur, states});
                const auto blend = [&](std::size_t state, std::int64_t j, double part) {
                    double& made = states[state][static_cast<std::size_t>(j)];
                    made = part * made + (1 - part) * old[state][static_cast<std::size_t>(j)];
                };
                for (std::int64_t j = 0; j < H; ++j) {
                    blend(0, j, at(arrays, zoneout_mask, row + j, 1) * at(arrays, leak, d * H + j, 1));
                    if (C == 1) blend(1, j, at(arrays, zoneout_cell_mask, row + j, 1));
                }
                for (std::int64_t j = 0; j < H; ++j) {
                    const double h = states[0][static_cast<std::size_t>(j)];
                    expected.output[static_cast<std::size_t>(row + j)] = h;
                    expected.loss += h * at(upstream, source_gradient, row + j, 0);
                    if (problem.each_cell) expected.loss += of_cells(j, ((written * N + n) * D + d) * C);
                }
            }
            for (std::int64_t j = 0; j < H; ++j) {
                const auto unit = static_cast<std::size_t>(j);
                expected.loss += states[0][unit] * at(upstream, state_gradient, (n * D + d) * H + j, 0);
                if (!problem.each_cell) expected.loss += of_cells(j, (n * D + d) * C);
            }
        }
    return expected;
}

// Returns the gradients computed by finite differences, in the order of the results.
inline std::vector<double> slopes(const Problem& problem, Arrays arrays, const Arrays& upstream) {
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

}  // namespace vkrnn::test
