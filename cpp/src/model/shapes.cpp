// Computes the shapes of a call's tensors from the symbolic shapes of the table of cells and the sizes of a spec.
#include "vkrnn/spec.h"

#include "base/lazy.h"

namespace vkrnn {

std::int64_t multiple_of_h(const Spec& spec, Axis axis) {
    switch (axis) {
        case Axis::H: return 1;
        case Axis::DH: return spec.D();
        case Axis::GH: return spec.G();
        case Axis::CH: return spec.cells_each();
        case Axis::DGH: return spec.D() * spec.G();
        case Axis::DCH: return spec.D() * spec.cells_each();
        default: return 0;
    }
}

TensorShape to_shape(const Spec& spec, const SymbolicShape& symbols) {
    TensorShape shape;
    const bool packed = spec.packed() && symbols.front() == Axis::T;
    for (const Axis axis : symbols) {
        switch (axis) {
            case Axis::T: shape.push_back(packed ? spec.packed_rows : spec.T); break;
            case Axis::N:
                if (!packed) shape.push_back(spec.N);
                break;
            case Axis::I: shape.push_back(spec.I); break;
            case Axis::D: shape.push_back(spec.D()); break;
            case Axis::one: shape.push_back(1); break;
            case Axis::head_units: shape.push_back(spec.head_units()); break;
            case Axis::head_features: shape.push_back(spec.head_features()); break;
            default: shape.push_back(multiple_of_h(spec, axis) * spec.H);
        }
    }
    return shape;
}

const std::vector<SymbolicShape>& accepted_shapes(const Spec& spec, Argument argument) {
    using enum Axis;
    struct TorchShapes {
        std::vector<SymbolicShape> hidden{{D, N, H}}, cell{{D, N, CH}}, hidden_of_steps{{D, N, H}, {T, N, DH}},
            cell_of_steps{{D, N, CH}, {T, N, DCH}};
    };
    static constinit Lazy<TorchShapes> made;
    const TorchShapes& shapes = made.get([] { return TorchShapes(); });
    if (spec.torch_layout) {
        if (argument == Argument::init_state || argument == Argument::state_gradient) return shapes.hidden;
        for (const StateTensors& state : spec.cell_tensors()) {
            if (argument == state.initial) return shapes.cell;
            if (argument == state.gradient) return shapes.cell_of_steps;
        }
        if (argument == Argument::reset_state || argument == Argument::reset_cell) return shapes.hidden_of_steps;
    }
    const ShapeRule& rule = shape_rule(argument, spec.has(Argument::input_weight));
    return spec.D() == 2 ? rule.bidirectional : rule.unidirectional;
}

TensorShape shape_of(const Spec& spec, Argument argument) {
    const auto& accepted = accepted_shapes(spec, argument);
    TensorShape shape = to_shape(spec, spec.has_largest(argument) ? accepted.back() : accepted.front());
    if (argument == Argument::mask)
        for (std::size_t axis = 0; axis < shape.size(); ++axis)
            if (!spec.mask_varies.at(axis)) shape[axis] = 1;
    return shape;
}

TensorShape shape_of(const Spec& spec, Output output) {
    if (spec.torch_layout)
        for (const StateTensors& state : kStateTensors)
            if (output == state.last) return shape_of(spec, state.initial);
    return to_shape(spec, shape_rule(output));
}

std::uint64_t element_bytes_of(const Spec& spec, Argument argument) {
    if (argument == Argument::lengths) return sizeof(std::int32_t);
    return argument == Argument::reset && spec.bool_reset ? 1 : storage_bytes(spec.dtype);
}

std::vector<Output> outputs_of(const Spec& spec) {
    std::vector<Output> found{Output::output};
    const auto cells = spec.cell_tensors();
    if (spec.descriptor.has(Flag::produce_cell))
        for (const StateTensors& state : cells) found.push_back(state.sequence);
    if (spec.descriptor.has(Flag::training)) found.push_back(Output::z_state);
    if (spec.last_states) {
        found.push_back(Output::last_state);
        for (const StateTensors& state : cells) found.push_back(state.last);
    }
    return found;
}

std::vector<Argument> gradient_order_of(const Spec& spec) {
    std::vector<Argument> found;
    for (const Argument argument : spec.cell().gradient_order) {
        const bool is_part = argument == Argument::secondary_bias && spec.vector_in_bias();
        const bool is_bool = argument == Argument::reset && spec.bool_reset;
        if (spec.has(argument) && !is_part && !is_bool) found.push_back(argument);
        if (argument == Argument::bias && spec.has(Argument::recurrent_bias)) found.push_back(Argument::recurrent_bias);
    }
    return found;
}

std::vector<Parameter> parameters_of(const Spec& spec) {
    std::vector<Parameter> found = spec.gradients ? spec.cell().gradients : spec.cell().forward;
    if (spec.has(Argument::recurrent_bias))
        std::erase_if(found, [](const Parameter& each) { return each.argument == Argument::secondary_bias; });
    if (spec.joined_cells)
        for (const StateTensors& state : std::span(kStateTensors).subspan(2))
            std::erase_if(found, [&](const Parameter& each) {
                return each.argument == state.initial || each.argument == state.gradient ||
                       each.argument == state.forward;
            });
    if (spec.torch_layout) found.push_back({Argument::recurrent_bias, true});
    return found;
}

std::string to_text(const TensorShape& shape) {
    std::string text = "[";
    for (const std::int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
    return text + "]";
}

std::int64_t elements_of(const TensorShape& shape) {
    std::int64_t elements = 1;
    for (const std::int64_t size : shape) elements *= size;
    return elements;
}

}  // namespace vkrnn
