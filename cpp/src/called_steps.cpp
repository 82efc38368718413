// Runs each step of a stream as an ordinary call, for devices without a faster way. Weights and states stay on the
// device.
#include <cstring>
#include <string>

#include "stream_steps.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

using enum Argument;

const std::string kStream = "[stream]";

class CalledSteps final : public StreamSteps {
public:
    CalledSteps(Device& device, std::span<const StreamPart> parts) : device_(device) {
        for (const StreamPart& part : parts) {
            Layer layer{part.spec, {}, {}, 0};
            layer.spec.descriptor.set(Flag::produce_cell, part.spec.C() > 0);
            for (const auto& [argument, data] : part.weights)
                layer.arguments[argument] = stored(data, bytes(layer.spec, argument));
            for (const Argument state : {init_state, init_cell})
                if (part.spec.has(state)) layer.arguments[state] = device.allocate(bytes(layer.spec, state), true);
            layers_.push_back(std::move(layer));
        }
    }

    void run(const void* input, void* output, std::int64_t steps, const Poll& poll) override {
        make_room(steps);
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            Layer& layer = layers_[i];
            Spec spec = layer.spec;
            spec.T = steps;
            const std::shared_ptr<const Plan> plan = device_.plan(spec);
            std::vector<InputLocation> inputs;
            for (const auto& [argument, buffer] : plan->inputs) {
                if (argument == source) {
                    inputs.push_back(i == 0 ? InputLocation{input} : InputLocation{nullptr, layers_[i - 1].outputs[0]});
                } else {
                    inputs.push_back({nullptr, layer.arguments.at(argument)});
                }
            }
            std::vector<ResultLocation> results;
            for (const auto& made : layer.outputs) results.push_back({nullptr, made});
            device_.run(plan, inputs, results, false, kStream, poll);
        }
        // States are updated after all layers have run, so that a step that throws leaves them unchanged.
        device_.download(output, {nullptr, layers_.back().outputs[0]}, layers_.back().outputs[0]->bytes(), poll);
        for (Layer& layer : layers_)
            for (std::size_t i = 0; i < layer.outputs.size(); ++i) {
                const auto& state = layer.arguments.at(i == 0 ? init_state : init_cell);
                const std::uint64_t last = layer.outputs[i]->bytes() - state->bytes();
                device_.copy({nullptr, state}, {nullptr, layer.outputs[i], last}, state->bytes(), {});
            }
    }

    void read(std::size_t layer, Argument state, void* to) override {
        const auto& at = layers_.at(layer).arguments.at(state);
        device_.download(to, {nullptr, at}, at->bytes(), {});
    }

    void write(std::size_t layer, Argument state, const void* from) override {
        const auto& at = layers_.at(layer).arguments.at(state);
        device_.upload({nullptr, at}, from, at->bytes(), {});
    }

private:
    struct Layer {
        Spec spec;
        std::map<Argument, std::shared_ptr<Storage>> arguments;
        std::vector<std::shared_ptr<Storage>> outputs;  // [T, N, H], [T, N, C H]
        std::int64_t room = 0;                          // T that they have room for
    };

    static std::uint64_t bytes(const Spec& spec, Argument argument) {
        return static_cast<std::uint64_t>(elements_of(shape_of(spec, argument))) * storage_bytes(spec.dtype);
    }

    std::shared_ptr<Storage> stored(const void* data, std::uint64_t size) {
        std::shared_ptr<Storage> storage = device_.allocate(size, true);
        device_.upload({nullptr, storage}, data, size, {});
        return storage;
    }

    void make_room(std::int64_t steps) {
        for (Layer& layer : layers_) {
            if (layer.room == steps) continue;
            layer.room = 0;
            layer.outputs.clear();
            for (const Argument state : {init_state, init_cell})
                if (layer.spec.has(state))
                    layer.outputs.push_back(
                        device_.allocate(static_cast<std::uint64_t>(steps) * bytes(layer.spec, state), false));
            layer.room = steps;
        }
    }

    Device& device_;
    std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<StreamSteps> Device::prepare_steps(std::span<const StreamPart> layers, unsigned /*threads*/) {
    const Dtype dtype = layers.front().spec.dtype;
    if (is_half(dtype))
        throw NotImplementedError(kStream + " dtype: streams of " + std::string(name_of(dtype)) +
                                  " run on the CPU only, got " + profile().name);
    return std::make_unique<CalledSteps>(*this, layers);
}

}  // namespace vkrnn
