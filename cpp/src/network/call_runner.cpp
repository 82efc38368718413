// Runs the steps of a stream as calls of a network, for devices without a faster way. Weights and states stay on the
// device.
#include <string>
#include <utility>

#include "run/stream_runner.h"
#include "vkrnn/error.h"
#include "vkrnn/network.h"

namespace vkrnn {
namespace {

using enum Argument;

const std::string kStream = "[stream]";

std::vector<NetworkLayer> layers_of(std::span<const StreamPart> parts) {
    std::vector<NetworkLayer> layers;
    for (const StreamPart& part : parts) {
        NetworkLayer layer{part.spec.descriptor, {}};
        for (const auto& [argument, data] : part.weights)
            layer.weights[argument] = {data, shape_of(part.spec, argument), part.spec.dtype};
        layers.push_back(std::move(layer));
    }
    return layers;
}

class CallRunner final : public StreamRunner {
public:
    CallRunner(std::shared_ptr<Device> device, std::span<const StreamPart> parts)
        : network_(std::move(device), layers_of(parts)), batch_(parts.front().spec.N), features_(parts.front().spec.I) {
        for (std::size_t l = 0; l < parts.size(); ++l)
            for (const Argument state : {init_state, init_cell})
                if (parts[l].spec.has(state)) {
                    const std::uint64_t bytes = state_bytes(parts[l].spec, state);
                    states_[{l, state}] = {network_.device()->allocate(bytes, true), nullptr};
                    states_[{l, state}].after = network_.device()->allocate(bytes, false);
                }
    }

    void run(const void* input, void* output, std::int64_t steps, const Poll& poll) override {
        if (steps != steps_) {
            spec_ = network_.check(arguments(steps));
            steps_ = steps;
        }
        network_.run(
            *network_.plan(spec_, false),
            [&](const NetworkTensor& tensor) -> InputLocation {
                const Argument argument = std::get<Argument>(tensor.what);
                if (argument == source) return {input};
                return {nullptr, states_.at({tensor.layer, argument}).now};
            },
            [&](const NetworkTensor& tensor) -> ResultLocation {
                const Output result = std::get<Output>(tensor.what);
                if (result == Output::output) return {output};
                return {nullptr,
                        states_.at({tensor.layer, result == Output::last_cell ? init_cell : init_state}).after};
            },
            true, poll, kStream);
        // After the call, so that one that throws leaves the states unchanged.
        for (auto& [at, state] : states_) std::swap(state.now, state.after);
    }

    void read(std::size_t layer, Argument state, void* to) override {
        const auto& at = states_.at({layer, state}).now;
        network_.device()->download(to, {nullptr, at}, at->bytes(), {});
    }

    void write(std::size_t layer, Argument state, const void* from) override {
        const auto& at = states_.at({layer, state}).now;
        network_.device()->upload({nullptr, at}, from, at->bytes(), {});
    }

private:
    // A state before a call, and memory for it after the call.
    struct State {
        std::shared_ptr<Storage> now, after;
    };

    [[nodiscard]] NetworkArguments arguments(std::int64_t steps) const {
        const std::string dtype(name_of(network_.spec(0).dtype));
        NetworkArguments made{std::vector<Arguments>(network_.layers())};
        made.form.joined_cells = true;
        made.layers[0][source] = {dtype, {steps, batch_, features_}, {}};
        for (const auto& [at, state] : states_) {
            Spec spec = network_.spec(at.first);
            spec.N = batch_;
            made.layers[at.first][at.second] = {dtype, shape_of(spec, at.second), {}};
        }
        return made;
    }

    const Network network_;
    const std::int64_t batch_, features_;
    std::map<std::pair<std::size_t, Argument>, State> states_;
    NetworkSpec spec_;
    std::int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<StreamRunner> Device::make_stream_runner(std::span<const StreamPart> layers, unsigned /*threads*/) {
    const Dtype dtype = layers.front().spec.dtype;
    if (is_half(dtype))
        throw NotImplementedError(kStream + " dtype: streams of " + std::string(name_of(dtype)) +
                                  " run on the CPU only, got " + profile().name);
    return std::make_unique<CallRunner>(shared_from_this(), layers);
}

}  // namespace vkrnn
