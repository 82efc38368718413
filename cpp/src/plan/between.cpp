#include "between.h"

#include "builder.h"
#include "strategy.h"

namespace vkrnn {

Plan make_between_plan(const Spec& layer, const Profile& profile) {
    const Chosen chosen = choose_strategies(layer, profile, {}, {});
    PlanBuilder builder(layer, profile, chosen);
    const std::size_t output = builder.input(Argument::output_fwd), mask = builder.input(Argument::mask);
    const std::int64_t elements = elements_of(shape_of(layer, Output::output));
    builder.combine("multiply by the mask between layers", {output, mask, builder.result(Output::output), elements});
    return builder.finish();
}

}  // namespace vkrnn
