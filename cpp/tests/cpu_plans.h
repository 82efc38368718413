// CPU plans for tests, for any instruction set and team size, and the cells as plain loops.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <span>

#include "cpu_team.h"
#include "plan/cpu_work.h"
#include "vkrnn/plan.h"

namespace vkrnn::cpu {

using Arrays = std::map<Argument, std::vector<double>>;

inline Profile profile_of(const Target& target) {
    Profile profile;
    profile.backend = Backend::native;
    profile.type = DeviceType::cpu;
    profile.subgroup_size = target.lanes;
    profile.float64 = true;
    return profile;
}

struct Shape {
    std::int64_t T, N, I, H;
};

inline Spec make_spec(CellKind kind, const Shape& shape, std::initializer_list<Argument> present,
                      std::initializer_list<Flag> flags = {}) {
    Spec spec;
    spec.descriptor = default_descriptor(kind);
    for (const Flag flag : flags) spec.descriptor.set(flag, true);
    spec.T = shape.T;
    spec.N = shape.N;
    spec.I = shape.I;
    spec.H = shape.H;
    for (const Argument argument : present) spec.present |= 1u << static_cast<unsigned>(argument);
    return spec;
}

// Returns a spec with all weights and initial states. A ReLU, whose derivative jumps, is replaced by tanh.
inline Spec learning_spec(CellKind kind, const Shape& shape, std::initializer_list<Flag> flags = {}) {
    using enum Argument;
    Spec spec = make_spec(kind, shape, {source, recurrent_weight, input_weight, bias, init_state}, flags);
    spec.descriptor.set(Flag::training, true);
    if (kind == CellKind::single_gate_rnn) spec.descriptor.activations[0] = Activation::tanh;
    if (kind == CellKind::lstm)
        for (const Argument argument : {init_cell, peephole}) spec.present |= 1u << static_cast<unsigned>(argument);
    if (kind == CellKind::gru && spec.descriptor.has(Flag::reset_after))
        spec.present |= 1u << static_cast<unsigned>(secondary_bias);
    return spec;
}

inline Spec gradients_of(Spec spec) {
    spec.gradients = true;
    spec.descriptor.set(Flag::training, false);
    for (const Parameter& parameter : spec.cell().gradients)
        if (!parameter.optional || parameter.argument == Argument::source_gradient)
            spec.present |= 1u << static_cast<unsigned>(parameter.argument);
    return spec;
}

// Every cell, and the GRU with both kinds of reset.
inline std::vector<Spec> all_cells(const Shape& shape) {
    return {learning_spec(CellKind::single_gate_rnn, shape), learning_spec(CellKind::lstm, shape),
            learning_spec(CellKind::gru, shape), learning_spec(CellKind::gru, shape, {Flag::reset_after})};
}

inline std::string name_of_case(const Spec& spec) {
    return std::string(spec.cell().name) + (spec.descriptor.has(Flag::reset_after) ? " reset after" : "");
}

// Returns numbers for every argument of a forward call.
inline Arrays make_arrays(const Spec& spec) {
    Plan plan = make_plan(spec, profile_of(targets().back()));
    Arrays arrays;
    Numbers numbers;
    for (const auto& [argument, buffer] : plan.inputs)
        for (std::uint64_t i = 0; i < plan.buffers[buffer].bytes / storage_bytes(spec.dtype); ++i)
            arrays[argument].push_back(0.5 * numbers());
    return arrays;
}

// Runs a call as its device would, on this many threads. Each kernel may poll: `asked` decides at which of four
// occasions. Results are in the plan's order.
template <class T>
std::vector<Aligned<T>> run_plan(const Target& target, Spec spec, const Arrays& arrays, unsigned threads = 1,
                                 const std::function<bool()>& poll = {}, int asked = 0) {
    spec.dtype = sizeof(T) == sizeof(double) ? Dtype::float64 : Dtype::float32;
    const Profile profile = profile_of(target);
    const Plan plan = make_plan(spec, profile);
    std::vector<Aligned<T>> buffers;
    for (const PlanBuffer& buffer : plan.buffers) buffers.emplace_back(buffer.bytes / sizeof(T), T{-1000});
    for (const auto& [argument, buffer] : plan.inputs)
        for (std::size_t i = 0; i < buffers[buffer].size(); ++i)
            buffers[buffer][i] = static_cast<T>(arrays.at(argument)[i]);
    const Threads allowed(threads);
    for (const Step& step : plan.steps) {
        if (const auto* clear = std::get_if<Clear>(&step)) {
            buffers[clear->buffer].assign(buffers[clear->buffer].size(), T{0});
            continue;
        }
        const auto& dispatch = std::get<Dispatch>(step);
        std::vector<std::uint64_t> work((dispatch.push.bytes.size() + 7) / 8);
        std::memcpy(work.data(), dispatch.push.bytes.data(), dispatch.push.bytes.size());
        for (std::size_t i = 0; i < dispatch.push.references; ++i)
            work[i] = address_of(buffers[referenced_buffer(work[i])].data()) + referenced_offset(work[i]);
        const Kernel& kernel = plan.kernels[dispatch.kernel];
        const NamedKernel& named = find_kernel(target, kernel.shader);
        run_on_team(threads, poll, [&](Member& member) {
            for (int i = 0; i < asked; ++i) member.stopped();
            named.run(reinterpret_cast<const std::byte*>(work.data()), kernel.constants.data(), member);
        });
    }
    std::vector<Aligned<T>> results;
    for (const std::size_t result : plan.results) results.push_back(buffers[result]);
    return results;
}

inline double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

// Computes the output [T, N, H] of a forward call of learning_spec() in plain C++.
inline std::vector<double> plain_output(const Spec& spec, const Arrays& arrays) {
    const std::int64_t N = spec.N, I = spec.I, H = spec.H, G = spec.G();
    const auto at = [&](Argument argument, std::int64_t i) { return arrays.at(argument)[static_cast<std::size_t>(i)]; };
    const bool lstm = spec.descriptor.cell == CellKind::lstm, gru = spec.descriptor.cell == CellKind::gru;
    const bool reset_after = spec.descriptor.has(Flag::reset_after);
    std::vector<double> h = arrays.at(Argument::init_state), c, output;
    if (lstm) c = arrays.at(Argument::init_cell);
    for (std::int64_t t = 0; t < spec.T; ++t) {
        const std::vector<double> before = h;
        for (std::int64_t n = 0; n < N; ++n) {
            const auto from_source = [&](std::int64_t g, std::int64_t j) {
                double sum = at(Argument::bias, g * H + j);
                for (std::int64_t i = 0; i < I; ++i)
                    sum += at(Argument::source, (t * N + n) * I + i) * at(Argument::input_weight, (g * H + j) * I + i);
                return sum;
            };
            std::vector<double> reset(static_cast<std::size_t>(H), 1.0);
            const auto recurrent = [&](std::int64_t g, std::int64_t j) {
                double sum = 0;
                for (std::int64_t k = 0; k < H; ++k)
                    sum += before[static_cast<std::size_t>(n * H + k)] * reset[static_cast<std::size_t>(k)] *
                           at(Argument::recurrent_weight, (g * H + j) * H + k);
                return sum;
            };
            std::vector<double> z(static_cast<std::size_t>(H));
            std::vector<double> r(static_cast<std::size_t>(H));
            if (gru) {
                for (std::int64_t j = 0; j < H; ++j) {
                    z[static_cast<std::size_t>(j)] = sigmoid_of(from_source(0, j) + recurrent(0, j));
                    r[static_cast<std::size_t>(j)] = sigmoid_of(from_source(1, j) + recurrent(1, j));
                }
                if (!reset_after) reset = r;
            }
            for (std::int64_t j = 0; j < H; ++j) {
                const auto unit = static_cast<std::size_t>(j), here = static_cast<std::size_t>(n * H + j);
                if (lstm) {
                    double gate[4];
                    for (std::int64_t g = 0; g < G; ++g) {
                        const double a =
                            from_source(g, j) + recurrent(g, j) + at(Argument::peephole, g * H + j) * c[here];
                        gate[g] = g == 2 ? std::tanh(a) : sigmoid_of(a);
                    }
                    c[here] = gate[1] * c[here] + gate[0] * gate[2];
                    h[here] = gate[3] * std::tanh(c[here]);
                } else if (gru) {
                    double product = recurrent(2, j);
                    if (reset_after) product = r[unit] * (product + at(Argument::secondary_bias, j));
                    h[here] = z[unit] * before[here] + (1 - z[unit]) * std::tanh(from_source(2, j) + product);
                } else {
                    h[here] = std::tanh(from_source(0, j) + recurrent(0, j));
                }
            }
        }
        output.insert(output.end(), h.begin(), h.end());
    }
    return output;
}

}  // namespace vkrnn::cpu
