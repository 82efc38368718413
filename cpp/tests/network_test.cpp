// Tests plans of several layers: they give the bits of one call for each layer, forward and backwards.
#include "vkrnn/network.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

namespace vkrnn {
namespace {

using enum Argument;

constexpr std::int64_t T = 5, N = 3, I = 6;

std::vector<float> numbers(std::int64_t count, double seed) {
    std::vector<float> drawn(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < drawn.size(); ++i)
        drawn[i] = static_cast<float>(0.4 * std::sin(seed + 1.7 * static_cast<double>(i)));
    return drawn;
}

// A layer's sizes and its weights.
struct Weights {
    Descriptor descriptor;
    std::int64_t I, H;
    std::vector<float> input, recurrent, bias;

    Weights(CellKind kind, bool bidirectional, std::int64_t features, std::int64_t units, double seed)
        : descriptor(default_descriptor(kind)), I(features), H(units) {
        descriptor.set(Flag::bidirectional, bidirectional);
        input = numbers(rows() * I, seed);
        recurrent = numbers(rows() * H, seed + 1);
        bias = numbers(rows(), seed + 2);
    }
    [[nodiscard]] std::int64_t D() const { return descriptor.has(Flag::bidirectional) ? 2 : 1; }
    [[nodiscard]] std::int64_t rows() const { return D() * cell(descriptor.cell).gate_count() * H; }
    [[nodiscard]] NetworkLayer layer() const {
        const TensorShape shape = D() == 2 ? TensorShape{2, rows() / 2, H} : TensorShape{rows(), H};
        return {descriptor,
                {{input_weight, {input.data(), {rows(), I}}},
                 {recurrent_weight, {recurrent.data(), shape}},
                 {Argument::bias, {bias.data(), {rows()}}}}};
    }
};

using Tensors = std::map<NetworkTensor, std::vector<float>>;

// Runs a plan and returns the results. `given` has the inputs except for the weights.
Tensors run(const Network& network, const NetworkSpec& spec, const Tensors& given) {
    const auto plan = network.plan(spec, false);
    Tensors results;
    for (std::size_t i = 0; i < plan->results.size(); ++i)
        results[plan->results[i]].resize(plan->plan->buffers[plan->plan->results[i]].bytes / sizeof(float));
    network.run(
        *plan, [&](const NetworkTensor& tensor) -> InputLocation { return {given.at(tensor).data()}; },
        [&](const NetworkTensor& tensor) -> ResultLocation { return {results.at(tensor).data()}; }, true, {});
    return results;
}

TensorInfo info(TensorShape shape) { return {"float32", std::move(shape), {}}; }

class Networks : public testing::TestWithParam<bool> {
protected:
    // A GRU above a bidirectional LSTM above an RNN.
    std::vector<Weights> weights_{
        {CellKind::single_gate_rnn, false, I, 7, 1}, {CellKind::lstm, true, 7, 5, 2}, {CellKind::gru, false, 10, 4, 3}};
    const std::shared_ptr<Device> device_ = Device::open_cpu();

    [[nodiscard]] std::vector<NetworkLayer> layers() const {
        std::vector<NetworkLayer> made;
        for (const Weights& each : weights_) made.push_back(each.layer());
        return made;
    }
};

TEST_P(Networks, HaveTheBitsOfOneCallForEachLayer) {
    const bool masked = GetParam();
    const Network network(device_, layers());
    NetworkArguments arguments{std::vector<Arguments>(3), {}, 0};
    arguments.layers[0] = {{source, info({T, N, I})}};
    arguments.layers[1] = {{init_state, info({N, 10})}, {init_cell, info({N, 10})}};
    Tensors tensors{{{0, source}, numbers(T * N * I, 4)},
                    {{1, init_state}, numbers(N * 10, 5)},
                    {{1, init_cell}, numbers(N * 10, 6)}};
    if (masked) {
        arguments.between = {info({T, N, 7}), info({T, N, 10})};
        tensors[{0, Between{}}] = numbers(T * N * 7, 7);
        tensors[{1, Between{}}] = numbers(T * N * 10, 8);
    }
    const NetworkSpec spec = network.check(arguments);
    tensors.merge(run(network, spec, tensors));
    NetworkUpstream upstream{info({T, N, 4}), std::vector<Arguments>(3)};
    upstream.layers[0] = {{state_gradient, info({N, 7})}};
    upstream.layers[1] = {{cell_gradient, info({N, 10})}};
    tensors[{2, source_gradient}] = numbers(T * N * 4, 9);
    tensors[{0, state_gradient}] = numbers(N * 7, 10);
    tensors[{1, cell_gradient}] = numbers(N * 10, 11);
    const NetworkSpec back = check_network_gradients(spec, upstream);
    const Tensors gradients = run(network, back, tensors);

    // The same, layer by layer.
    std::vector<float> below = tensors.at({0, source});
    std::vector<Tensors> forward(3);
    const auto product = [](std::vector<float> a, const std::vector<float>& b) {
        for (std::size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
        return a;
    };
    std::vector<std::unique_ptr<Network>> each;
    for (std::size_t l = 0; l < 3; ++l) {
        const NetworkLayer layer = weights_[l].layer();
        each.push_back(std::make_unique<Network>(device_, std::span(&layer, 1)));
        NetworkArguments one{{arguments.layers[l]}, {}, 0};
        one.layers[0][source] = info({T, N, weights_[l].I});
        Tensors& own = forward[l];
        own[{0, source}] = below;
        for (const Argument state : {init_state, init_cell})
            if (tensors.contains({l, state})) own[{0, state}] = tensors.at({l, state});
        own.merge(run(*each[l], each[l]->check(one), own));
        for (const Output output : outputs_of(spec.layers[l]))
            EXPECT_EQ((own.at({0, output})), (tensors.at({l, output}))) << l << name_of(output);
        below = own.at({0, Output::output});
        if (masked && l < 2) below = product(below, tensors.at({l, Between{}}));
    }
    std::vector<float> above = tensors.at({2, source_gradient});
    for (std::size_t l = 3; l-- > 0;) {
        NetworkArguments one{{arguments.layers[l]}, {}, 0};
        one.layers[0][source] = info({T, N, weights_[l].I});
        NetworkUpstream of_one{info({T, N, weights_[l].D() * weights_[l].H}), {upstream.layers[l]}};
        Tensors& own = forward[l];
        own[{0, source_gradient}] = above;
        for (const Argument state : {state_gradient, cell_gradient})
            if (tensors.contains({l, state})) own[{0, state}] = tensors.at({l, state});
        const Tensors found = run(*each[l], check_network_gradients(each[l]->check(one), of_one), own);
        for (const Argument argument : {recurrent_weight, input_weight, bias, init_state, init_cell}) {
            if (!back.layers[l].has(argument)) continue;
            EXPECT_EQ((found.at({0, argument})), (gradients.at({l, argument}))) << l << name_of(argument);
        }
        above = found.at({0, source});
        if (masked && l > 0) above = product(above, tensors.at({l - 1, Between{}}));
    }
    EXPECT_EQ(above, (gradients.at({0, source})));
}

INSTANTIATE_TEST_SUITE_P(WithMasksBetween, Networks, testing::Bool());

}  // namespace
}  // namespace vkrnn
