#include "layer_check.h"

#include <algorithm>
#include <string>

#include "vkrnn/error.h"

namespace vkrnn {
namespace {

using enum Argument;

std::string layer_label(std::size_t number) { return "layer " + std::to_string(number); }

std::int64_t axis_of(const NetworkLayer& layer, Argument argument, std::size_t axis) {
    const auto found = layer.weights.find(argument);
    return found != layer.weights.end() && axis < found->second.shape.size() ? found->second.shape[axis] : 1;
}

// Returns the weight that a layer's type comes from.
Argument first_weight(const NetworkLayer& layer) {
    return layer.weights.contains(recurrent_weight) ? recurrent_weight : input_weight;
}

// Returns the spec of one layer. `before` is the layer that feeds it; null for the first layer.
Spec check_layer(const NetworkLayer& layer, std::size_t number, const Spec* before, std::int64_t batch) {
    Descriptor descriptor = layer.descriptor;
    const std::string prefix = layer_prefix(layer, number);
    descriptor.set(Flag::training, false);
    descriptor.set(Flag::produce_cell, false);
    const bool projects = layer.weights.contains(input_weight);
    const Argument first = first_weight(layer);
    if (!layer.weights.contains(first))
        throw ValueError(prefix + "input_weight: expected an array in a layer without recurrent_weight, got none");
    const Dtype dtype = layer.weights.at(first).dtype;
    if (before != nullptr && before->dtype != dtype)
        throw TypeError(prefix + std::string(name_of(first)) + ": expected dtype " +
                        std::string(name_of(before->dtype)) + ", that of layer 0, got " + std::string(name_of(dtype)));

    // Without an input weight, the source has a column for each row of the recurrent weight.
    const std::size_t rows = descriptor.has(Flag::bidirectional) ? 1 : 0;
    const std::int64_t given = projects ? axis_of(layer, input_weight, 1) * descriptor.counts[kInputHeadsSlot]
                                        : static_cast<std::int64_t>(rows + 1) * axis_of(layer, recurrent_weight, rows);
    Arguments arguments;
    for (const auto& [argument, tensor] : layer.weights) {
        const bool is_state = std::ranges::find(kStateTensors, argument, &StateTensors::initial) != kStateTensors.end();
        // A zoneout mask of a layer is the same at every step.
        const bool is_of_steps = (argument == zoneout_mask || argument == zoneout_cell_mask) && tensor.shape.size() > 1;
        if (argument == source || is_state || argument == mask || argument == lengths || argument == reset ||
            argument == reset_state || argument == reset_cell || is_of_steps)
            throw TypeError(prefix + std::string(name_of(argument)) + ": expected only weights in a layer");
        arguments[argument] = {std::string(name_of(tensor.dtype)), tensor.shape, {}};
    }
    arguments[source] = {std::string(name_of(dtype)), {1, batch, given}, {}};
    Spec spec = check_call(descriptor, false, arguments, layer_label(number), {.joined_cells = true}).spec;
    if (before != nullptr && spec.I != before->D() * before->H)
        throw ValueError(prefix + (projects ? "input_weight" : "recurrent_weight") + ": expected a layer of " +
                         std::to_string(before->D() * before->H) + " inputs, the " + (before->D() == 2 ? "2H" : "H") +
                         " of layer " + std::to_string(number - 1) + ", got one of " + std::to_string(spec.I));
    return spec;
}

}  // namespace

std::string layer_prefix(const NetworkLayer& layer, std::size_t number) {
    return message_prefix(cell(layer.descriptor.cell), false, layer_label(number)) + " ";
}

std::vector<Spec> check_layers(std::span<const NetworkLayer> layers, std::int64_t batch) {
    std::vector<Spec> specs;
    for (const NetworkLayer& layer : layers)
        specs.push_back(check_layer(layer, specs.size(), specs.empty() ? nullptr : &specs.back(), batch));
    return specs;
}

}  // namespace vkrnn
