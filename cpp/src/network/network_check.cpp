// Checks the arguments of a network's calls.
#include <string>

#include "vkrnn/error.h"
#include "vkrnn/network.h"

namespace vkrnn {
namespace {

using enum Argument;

const std::string kCall = "[network]";

TensorInfo info_of(const Spec& spec, const TensorShape& shape) { return {std::string(name_of(spec.dtype)), shape, {}}; }

Spec check_layer(std::size_t layer, Descriptor descriptor, bool gradients, bool training, const Arguments& arguments,
                 CallForm form) {
    descriptor.set(Flag::training, training);
    descriptor.set(Flag::produce_cell, false);
    Spec spec = check_call(descriptor, gradients, arguments, "layer " + std::to_string(layer), form).spec;
    spec.last_states = !gradients;
    return spec;
}

// Checks a mask between layers or a gradient of an output, which has the shape of the layer's output.
void require_like_output(const TensorInfo& given, const Spec& spec, const std::string& what) {
    const TensorShape wanted = shape_of(spec, Output::output);
    if (given.dtype != name_of(spec.dtype))
        throw TypeError(kCall + " " + what + ": expected dtype " + std::string(name_of(spec.dtype)) +
                        " like source, got " + given.dtype);
    if (given.shape != wanted)
        throw ValueError(kCall + " " + what + ": expected shape [T, N, " + (spec.D() == 2 ? "2H" : "H") +
                         "] = " + to_text(wanted) + ", got " + to_text(given.shape));
}

}  // namespace

NetworkSpec check_network(std::span<const Descriptor> layers, const NetworkArguments& arguments) {
    if (arguments.layers.size() != layers.size())
        throw ValueError(kCall + " expected arguments of " + std::to_string(layers.size()) + " layers, got " +
                         std::to_string(arguments.layers.size()));
    NetworkSpec made;
    for (std::size_t l = 0; l < layers.size(); ++l) {
        Arguments given = arguments.layers[l];
        if (l > 0) {
            const Spec& below = made.layers.back();
            given[source] = info_of(below, shape_of(below, Output::output));
            for (const Argument shared : {lengths, reset})
                if (const auto found = arguments.layers[0].find(shared); found != arguments.layers[0].end())
                    given[shared] = found->second;
        }
        made.layers.push_back(check_layer(l, layers[l], false, l >= arguments.trained, given, arguments.form));
    }
    for (std::size_t l = 0; l < arguments.between.size(); ++l) {
        const std::string what = "between[" + std::to_string(l) + "]";
        if (arguments.between[l] && l + 1 >= layers.size())
            throw ValueError(kCall + " " + what + ": expected at most " + std::to_string(layers.size() - 1) +
                             " masks between " + std::to_string(layers.size()) + " layers");
        if (arguments.between[l]) require_like_output(*arguments.between[l], made.layers[l], what);
        made.between.push_back(arguments.between[l].has_value());
    }
    made.between.resize(layers.size() - 1);
    return made;
}

NetworkSpec check_network_gradients(const NetworkSpec& forward, const NetworkUpstream& upstream) {
    NetworkSpec made{{}, forward.between};
    const std::size_t last = forward.layers.size() - 1;
    while (made.first < last && !forward.layers[made.first].descriptor.has(Flag::training)) ++made.first;
    for (std::size_t l = 0; l <= last; ++l) {
        const Spec& spec = forward.layers[l];
        const CallForm form{spec.packed(), spec.torch_layout, spec.joined_cells};
        Arguments given = upstream.layers.at(l);
        for (const Parameter& parameter : parameters_of(spec))
            if (spec.has(parameter.argument))
                given[parameter.argument] = info_of(spec, shape_of(spec, parameter.argument));
        if (spec.bool_reset) given[reset].dtype = "bool";
        if (l < last || upstream.source_gradient)
            given[source_gradient] = info_of(spec, shape_of(spec, Output::output));
        for (const Parameter& parameter : spec.cell().gradients) {
            if (parameter.argument == z_state) given[z_state] = info_of(spec, shape_of(spec, Output::z_state));
            if (parameter.argument == output_fwd) given[output_fwd] = info_of(spec, shape_of(spec, Output::output));
        }
        for (const StateTensors& state : spec.cell_tensors())
            given[state.forward] = info_of(spec, shape_of(spec, state.sequence));
        if (spec.has(lengths)) {
            const auto again = upstream.layers[0].find(lengths);
            given[lengths] = again != upstream.layers[0].end() ? again->second : TensorInfo{"int32", {spec.N}, {}};
        }
        made.layers.push_back(check_layer(l, spec.descriptor, true, false, given, form));
    }
    if (upstream.source_gradient)
        require_like_output(*upstream.source_gradient, forward.layers.back(), "source_gradient");
    return made;
}

}  // namespace vkrnn
