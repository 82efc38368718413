#include "matrix_loop.h"

#include "matrix_cost.h"

namespace vkrnn {

bool MatrixLoop::runs_on(const Profile& profile) const { return has_matrix_units(profile); }

Sizes MatrixLoop::sizes(const Profile& profile, const Sizes& wanted) const {
    return sizes_of(with_checked_sizes(loading_shapes().front(), wanted, profile));
}

std::vector<Sizes> MatrixLoop::variants(const Profile& /*profile*/) const {
    std::vector<Sizes> found;
    for (const MatrixShape& shape : loading_shapes()) found.push_back(sizes_of(shape));
    return found;
}

std::optional<Offer> MatrixLoop::offer(const Spec& spec, const Profile& profile, const Sizes& wanted) const {
    if (spec.dtype == Dtype::float64) return std::nullopt;
    if (!spec.gradients && !is_bounded(spec)) return std::nullopt;
    std::optional<Offer> best;
    for (const MatrixShape& usual : loading_shapes()) {
        const MatrixShape shape = with_sizes(usual, wanted);
        if (!fits(shape, spec, profile)) continue;
        const double microseconds = static_cast<double>(spec.T) * loading_step_cost(shape, spec, profile, false);
        if (!best || microseconds < best->microseconds) best = Offer{microseconds, sizes_of(shape)};
    }
    if (best) best->microseconds = on_gpu(profile, best->microseconds);
    return best;
}

void MatrixLoop::forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    MatrixPlan plan(builder, inputs, views, shape_of(builder), spec.two_phases() ? 3 : 2, 1);
    Loop loop{spec.T, 0, 1, {}};
    for (const Phase& phase : forward_phases(spec))
        loop.body.push_back(
            plan.step(phase, "matrices_forward", plan.forward_weights(phase), spec.descriptor.has(Flag::training)));
    builder.add(std::move(loop));
}

void MatrixLoop::recompute(PlanBuilder& builder, const BackwardPass& pass) const { add_recompute(builder, pass); }

void MatrixLoop::backward(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    MatrixPlan plan(builder, pass.inputs, pass.views, shape_of(builder), 2, spec.G());
    Loop loop{spec.T, static_cast<std::int32_t>(spec.T - 1), -1, {}};
    for (const Phase& phase : backward_phases(spec))
        loop.body.push_back(plan.step(phase, "matrices_backward", plan.backward_weights(phase), false));
    Dispatch initial = at_step(loop.body.front(), "initial state", -1);
    builder.add(std::move(loop));
    if (spec.has(Argument::init_state)) builder.add(std::move(initial));
}

}  // namespace vkrnn
