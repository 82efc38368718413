#include "between.h"

#include "builder.h"
#include "strategy.h"

namespace vkrnn {

Plan make_between_plan(const Spec& layer, const Profile& profile) {
    const Chosen chosen = choose_strategies(layer, profile, {}, {});
    PlanBuilder builder(layer, profile, chosen);
    Multiplication multiplication;
    multiplication.elements = elements_of(shape_of(layer, Output::output));
    multiplication.a = builder.input(Argument::output_fwd);
    multiplication.b = builder.input(Argument::mask);
    multiplication.out = builder.result(Output::output);
    builder.multiply("multiply by the mask between layers", multiplication);
    return builder.finish();
}

}  // namespace vkrnn
