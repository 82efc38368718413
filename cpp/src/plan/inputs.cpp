#include "inputs.h"

namespace vkrnn {

Inputs::Inputs(PlanBuilder& builder) : spec_(builder.spec()) {
    const Cell& cell = spec_.cell();
    buffers_.fill(PlanBuilder::kZeros);
    for (const Parameter& parameter : spec_.gradients ? cell.gradients : cell.forward) {
        const Argument argument = parameter.argument;
        if (!spec_.has(argument)) continue;
        buffers_[static_cast<std::size_t>(argument)] = builder.input(argument);
    }
}

void Inputs::set(StepBlock& block) const {
    if (spec_.has(Argument::bias)) block.vector(abi::kBias, (*this)[Argument::bias], spec_.G());
    if (const Vectors* vectors = spec_.vectors())
        block.vector(abi::kVectors, (*this)[vectors->argument], vectors->weigh_cell ? spec_.G() : 1);
    if (spec_.has(Argument::mask)) block.mask((*this)[Argument::mask]);
    if (spec_.has(Argument::init_state)) block.state(abi::kInitHidden, (*this)[Argument::init_state]);
    if (spec_.has(Argument::lengths)) block.lengths((*this)[Argument::lengths]);
    if (spec_.has(Argument::init_cell)) block.state(abi::kInitCell, (*this)[Argument::init_cell], spec_.C());
}

}  // namespace vkrnn
