// What plans for the CPU's own kernels have in place of shaders: see cpu/work.h for what each kernel does.
#pragma once

#include "plan/inputs.h"

namespace vkrnn {

// Products and sums, as PlanBuilder's functions of these names have them.
void native_product(PlanBuilder& builder, const std::string& label, const Product& product);
void native_row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum);
void native_convert(PlanBuilder& builder, const std::string& label, std::size_t from, std::size_t to,
                    std::int64_t elements, bool narrow);

// All steps of the time loop, which read and write what the block says; for the backward loop the gradient of the
// initial state too. `keep`: as in StepOptions.
void native_forward_loop(PlanBuilder& builder, const Inputs& inputs, StepBlock block, bool keep);
void native_replay(PlanBuilder& builder, const StepBlock& block, bool keep);
void native_backward_loop(PlanBuilder& builder, const Inputs& inputs, StepBlock block);

}  // namespace vkrnn
