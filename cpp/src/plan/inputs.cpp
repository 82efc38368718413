#include "inputs.h"

#include <algorithm>

#include "cell_tensors.h"

namespace vkrnn {

Inputs::Inputs(PlanBuilder& builder) : spec_(builder.spec()) {
    buffers_.fill(PlanBuilder::kZeros);
    for (const Parameter& parameter : parameters_of(spec_))
        if (spec_.has(parameter.argument)) at(parameter.argument) = builder.input(parameter.argument);
    if (spec_.has(Argument::recurrent_bias)) add_biases(builder);
    initial_cells_ = at(Argument::init_cell);
    if (!has_cell_tensors(spec_)) return;
    std::vector<std::size_t> tensors;
    for (const StateTensors& state : spec_.cell_tensors()) tensors.push_back(at(state.initial));
    if (std::ranges::all_of(tensors, [](std::size_t each) { return each == PlanBuilder::kZeros; })) return;
    initial_cells_ = builder.scratch("initial cells", spec_.N * spec_.D() * spec_.C() * spec_.H);
    join_cells(builder, "join initial cells", tensors, initial_cells_, spec_.N);
}

// The candidate's biases are not added if a gate scales the product between them. Gradients do not depend on the sum.
void Inputs::add_biases(PlanBuilder& builder) {
    const std::size_t other = at(Argument::recurrent_bias);
    if (spec_.vector_in_bias()) at(Argument::secondary_bias) = other;
    if (spec_.gradients) return;
    const std::int64_t elements = elements_of(shape_of(spec_, Argument::bias)), gates = spec_.G() * spec_.H;
    const std::size_t bias = at(Argument::bias);
    at(Argument::bias) = builder.scratch_like(bias, "sum of biases", elements);
    Combination sum{bias, other, at(Argument::bias), elements, Combination::add};
    if (spec_.vector_in_bias()) sum.limit_to(gates - spec_.H, gates);
    builder.combine("add biases", sum);
    builder.round("sum of biases", at(Argument::bias), elements);
}

void Inputs::set(StepBlock& block) const {
    if (spec_.has(Argument::bias)) block.vector(abi::kBias, (*this)[Argument::bias], spec_.G());
    if (const Vectors* vectors = spec_.vectors()) {
        const bool is_part = spec_.vector_in_bias();
        block.vector(abi::kVectors, (*this)[vectors->argument], vectors->weigh_cell || is_part ? spec_.G() : 1);
        if (is_part) block.skip_slots(abi::kVectors, spec_.G() - 1);  // the candidate's part comes last
    }
    if (spec_.has(Argument::mask)) block.mask((*this)[Argument::mask]);
    if (spec_.has(Argument::init_state)) block.state(abi::kInitHidden, (*this)[Argument::init_state]);
    if (spec_.has(Argument::lengths)) block.lengths((*this)[Argument::lengths]);
    if (spec_.has(Argument::reset)) block.reset((*this)[Argument::reset]);
    for (const auto& [argument, view] :
         {std::pair{Argument::reset_state, abi::kResetState}, std::pair{Argument::reset_cell, abi::kResetCell}})
        if (spec_.has(argument)) block.reset_state(view, (*this)[argument], spec_.has_largest(argument));
    for (const auto& [argument, view] :
         {std::pair{Argument::zoneout_mask, abi::kBlend}, std::pair{Argument::leak, abi::kBlend},
          std::pair{Argument::zoneout_cell_mask, abi::kBlendCell}})
        if (spec_.has(argument)) block.blend(view, (*this)[argument], shape_of(spec_, argument).size());
    if (initial_cells_ != PlanBuilder::kZeros) block.state(abi::kInitCell, initial_cells_, spec_.C());
}

}  // namespace vkrnn
