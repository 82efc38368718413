#include "empty.h"

namespace vkrnn {
namespace {

void add_result(Plan& plan, std::string name, const TensorShape& shape) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(elements_of(shape)) * storage_bytes(plan.spec.dtype);
    plan.results.push_back(plan.buffers.size());
    plan.buffers.push_back({std::move(name), Role::result, bytes});
    if (bytes > 0) plan.steps.emplace_back(Clear{plan.results.back()});
}

}  // namespace

Plan make_empty_plan(const Spec& spec, const StrategyChoice& choice) {
    Plan plan;
    plan.spec = spec;
    plan.choice = choice;
    for (const Parameter& parameter : parameters_of(spec)) {
        const Argument argument = parameter.argument;
        if (!spec.has(argument)) continue;
        plan.inputs.emplace_back(argument, plan.buffers.size());
        plan.buffers.push_back(
            {std::string(name_of(argument)), Role::input,
             static_cast<std::uint64_t>(elements_of(shape_of(spec, argument))) * element_bytes_of(spec, argument)});
    }
    if (spec.gradients) {
        for (const Argument argument : gradient_order_of(spec))
            add_result(plan, "gradient of " + std::string(name_of(argument)), shape_of(spec, argument));
        return plan;
    }
    for (const Output output : outputs_of(spec)) add_result(plan, std::string(name_of(output)), shape_of(spec, output));
    return plan;
}

}  // namespace vkrnn
