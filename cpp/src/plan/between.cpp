#include "between.h"

#include "builder.h"
#include "strategy.h"

namespace vkrnn {

Plan make_between_plan(const Spec& layer, const Profile& profile) {
    const Chosen chosen = choose_strategies(layer, profile, {}, {});
    PlanBuilder builder(layer, profile, chosen);
    const std::size_t output = builder.input(Argument::output_fwd), mask = builder.input(Argument::mask);
    const std::int64_t elements = elements_of(shape_of(layer, Output::output));
    const std::size_t result = builder.result(Output::output);
    const auto multiply = [&](std::int64_t begin, std::int64_t end) {
        Combination some{output, mask, result, end - begin};
        some.offset = begin;
        builder.combine("multiply by the mask between layers", some);
    };
    if (layer.piece_steps == 0) {
        multiply(0, elements);
    } else {  // the sequence is not packed
        const std::int64_t row = elements / layer.T;
        builder.add_lane([&](const TimeRows& rows) { multiply(rows.begin * row, rows.end * row); });
    }
    return builder.finish();
}

}  // namespace vkrnn
