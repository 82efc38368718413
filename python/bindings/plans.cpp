// Plans for Python: as text, and as plain values to draw or compare.
#include "vkrnn/plan.h"

#include <variant>

#include "bindings.h"

namespace vkrnn::python {
namespace {

py::dict to_dict(const Plan& plan, const Dispatch& dispatch) {
    const Kernel& kernel = plan.kernels.at(dispatch.kernel);
    py::dict dict;
    dict["kind"] = "dispatch";
    dict["label"] = dispatch.label;
    dict["shader"] = kernel.shader;
    py::dict constants;
    for (const auto& [name, value] : named_constants(kernel)) constants[py::str(name)] = value;
    dict["constants"] = constants;
    dict["groups"] = py::make_tuple(dispatch.groups[0], dispatch.groups[1], dispatch.groups[2]);
    return dict;
}

py::dict to_dict(const Plan& plan, const Clear& clear) {
    py::dict dict;
    dict["kind"] = "clear";
    dict["buffer"] = plan.buffers.at(clear.buffer).name;
    return dict;
}

py::dict to_dict(const Plan& plan, const Loop& loop) {
    py::list body;
    for (const Dispatch& dispatch : loop.body) body.append(to_dict(plan, dispatch));
    py::dict dict;
    dict["kind"] = "loop";
    dict["count"] = loop.count;
    dict["body"] = body;
    return dict;
}

py::list to_list(const Plan& plan, const Sequence& sequence) {
    py::list steps;
    for (const auto& step : sequence)
        steps.append(std::visit([&](const auto& value) { return to_dict(plan, value); }, step));
    return steps;
}

py::dict to_dict(const Plan& plan, const Branches& branches) {
    py::list list;
    for (const Sequence& branch : branches.branches) list.append(to_list(plan, branch));
    py::dict dict;
    dict["kind"] = "branches";
    dict["branches"] = list;
    return dict;
}

py::dict to_dict(const Plan& plan, const Wavefront& wavefront) {
    py::list lanes;
    for (const Wavefront::Lane& lane : wavefront.lanes) {
        py::list pieces;
        for (const Sequence& piece : lane.pieces) pieces.append(to_list(plan, piece));
        py::dict found;
        found["before"] = to_list(plan, lane.before);
        found["pieces"] = pieces;
        found["after"] = to_list(plan, lane.after);
        lanes.append(found);
    }
    py::dict dict;
    dict["kind"] = "wavefront";
    dict["lanes"] = lanes;
    return dict;
}

py::list steps(const SharedPlan& shared) {
    py::list list;
    for (const Step& step : shared.plan->steps) {
        list.append(std::visit([&](const auto& value) { return to_dict(*shared.plan, value); }, step));
    }
    return list;
}

py::list buffers(const SharedPlan& shared) {
    py::list list;
    for (const PlanBuffer& buffer : shared.plan->buffers) {
        list.append(py::make_tuple(buffer.name, name_of(buffer.role), buffer.bytes));
    }
    return list;
}

py::dict strategy(const SharedPlan& shared) {
    const StrategyChoice& choice = shared.plan->choice;
    py::dict dict;
    dict["schedule"] = choice.schedule;
    dict["gemm"] = choice.gemm;
    for (const auto& [name, size] : choice.parameters) dict[py::str(name)] = size;
    return dict;
}

}  // namespace

void register_plans(py::module_& module) {
    py::class_<SharedPlan> plan(module, "Plan", "What a call does on a device, step by step.");
    plan.attr("__module__") = "vkrnn";
    plan.def_property_readonly("strategy", &strategy, "The strategies that run the call, with their tuning parameters.")
        .def_property_readonly(
            "float32", [](const SharedPlan& shared) { return name_of(shared.plan->spec.precision); },
            "``tf32`` if operands of float32 products are rounded to ten bits of mantissa, else ``ieee``.")
        .def_property_readonly("buffers", &buffers, "Name, role and bytes of every buffer.")
        .def_property_readonly("steps", &steps, "The steps in order, as dicts.")
        .def_property_readonly(
            "bytes", [](const SharedPlan& shared) { return shared.plan->bytes(); }, "Of all buffers.")
        .def_property_readonly(
            "peak_bytes", [](const SharedPlan& shared) { return shared.plan->peak_bytes(); },
            "Of the buffers that are needed at the same time. Others share their memory.")
        .def_property_readonly(
            "dispatches", [](const SharedPlan& shared) { return shared.plan->dispatches(); }, "With loops unrolled.")
        .def_property_readonly(
            "flops", [](const SharedPlan& shared) { return shared.plan->flops; }, "Of the matrix products.")
        .def(
            "__eq__", [](const SharedPlan& a, const SharedPlan& b) { return *a.plan == *b.plan; }, py::is_operator())
        .def("__repr__", [](const SharedPlan& shared) { return describe(*shared.plan, shared.label); });
    plan.attr("__hash__") = py::none();
}

}  // namespace vkrnn::python
