#include "matrix_loop.h"

#include "matrix_cost.h"
#include "plan/cost_table.h"

namespace vkrnn {

bool MatrixLoop::runs_on(const Profile& profile) const { return has_matrix_units(profile); }

Parameters MatrixLoop::parameters(const Profile& profile, const Parameters& wanted) const {
    return parameters_of(with_checked_parameters(loading_shapes().front(), wanted, profile));
}

std::vector<Parameters> MatrixLoop::variants(const Profile& /*profile*/) const {
    std::vector<Parameters> found;
    for (const MatrixShape& shape : loading_shapes()) found.push_back(parameters_of(shape));
    return found;
}

std::optional<CostEstimate> MatrixLoop::estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                 const Parameters& wanted) const {
    if (!spec.recurs() || !can_have_parts(spec) || spec.masks_gates()) return std::nullopt;
    if (spec.dtype == Dtype::float64) return std::nullopt;
    if (!spec.gradients && !is_bounded(spec)) return std::nullopt;
    std::optional<CostEstimate> best = cheapest<MatrixShape>(
        spec, loading_shapes(), wanted,
        [&](const MatrixShape& shape, const MatrixShape& /*usual*/) { return fits(shape, spec, profile); },
        [&](const MatrixShape& shape) { return loading_step_cost(shape, spec, profile, costs.matrices); });
    if (!best) return best;
    best->only_if_fixed = profile.type == DeviceType::cpu;
    if (spec.lanes > 1) best->ratio = (spec.gradients ? costs.lanes.backward : costs.lanes.forward).matrices;
    return best;
}

void MatrixLoop::run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    MatrixPlan plan(builder, inputs, views);
    add_loop_of_phases(builder, [&](const Phase& phase) {
        const StepOptions options{phase.number, keeps_training_state(builder.spec())};
        return plan.step(phase, "matrices", plan.pack_weights(phase), plan.constants(options, false));
    });
}

}  // namespace vkrnn
