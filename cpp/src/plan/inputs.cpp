#include "inputs.h"

#include "vkrnn/error.h"

namespace vkrnn {

std::int64_t elements_of(const Spec& spec, Argument argument) {
    const std::int64_t T = spec.T, N = spec.N, H = spec.H, D = spec.D(), G = spec.G(), C = spec.C();
    switch (argument) {
        case Argument::source: return T * N * spec.I;
        case Argument::recurrent_weight: return D * G * H * H;
        case Argument::input_weight: return D * G * H * spec.I;
        case Argument::bias: return D * G * H;
        case Argument::peephole:
        case Argument::secondary_bias: return D * spec.cell().vector_count * H;
        case Argument::z_state: return T * N * D * G * H;
        case Argument::source_gradient:
        case Argument::output_fwd: return T * N * D * H;
        case Argument::cell_output_fwd: return T * N * D * C * H;
        case Argument::init_state:
        case Argument::state_gradient: return N * D * H;
        case Argument::init_cell:
        case Argument::cell_gradient: return N * D * C * H;
        case Argument::lengths: return N;
        case Argument::mask:
            return (spec.mask_varies[0] ? T : 1) * (spec.mask_varies[1] ? N : 1) * (spec.mask_varies[2] ? D * H : 1);
    }
    throw Error("internal: an argument without a size");
}

Inputs::Inputs(PlanBuilder& builder) : spec_(builder.spec()) {
    const Cell& cell = spec_.cell();
    buffers_.fill(PlanBuilder::kZeros);
    for (const Parameter& parameter : spec_.gradients ? cell.gradients : cell.forward) {
        const Argument argument = parameter.argument;
        if (!spec_.has(argument)) continue;
        const std::int64_t elements = elements_of(spec_, argument);
        buffers_[static_cast<std::size_t>(argument)] =
            argument == Argument::lengths ? builder.integers(argument, elements) : builder.input(argument, elements);
    }
}

void Inputs::set(StepBlock& block) const {
    const Cell& cell = spec_.cell();
    if (spec_.has(Argument::bias)) block.vector(abi::kBias, (*this)[Argument::bias], spec_.G());
    if (cell.vectors && spec_.has(*cell.vectors))
        block.vector(abi::kVectors, (*this)[*cell.vectors], cell.vector_count);
    if (spec_.has(Argument::mask)) block.mask((*this)[Argument::mask]);
    if (spec_.has(Argument::init_state)) block.state(abi::kInitHidden, (*this)[Argument::init_state]);
    if (spec_.has(Argument::lengths)) block.lengths((*this)[Argument::lengths]);
    if (spec_.has(Argument::init_cell)) block.state(abi::kInitCell, (*this)[Argument::init_cell], spec_.C());
}

}  // namespace vkrnn
