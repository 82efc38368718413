// Plans as Python sees them: text, and plain values to draw or to compare.
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
    dict["constants"] = py::tuple(py::cast(kernel.constants));
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

}  // namespace

void register_plans(py::module_& module) {
    py::class_<Flavour>(module, "Flavour", "How a device runs the work; part of every plan.")
        .def_readonly("schedule", &Flavour::schedule, "How the time loop is dispatched.")
        .def_readonly("gemm", &Flavour::gemm, "Which kernel computes the matrix products.")
        .def_readonly("lanes", &Flavour::lanes, "Invocations that share a dot product of the recurrent product.")
        .def_readonly("rows", &Flavour::rows, "Batch rows per invocation of the recurrent product.")
        .def_readonly("workgroup", &Flavour::workgroup, "Invocations per workgroup of the step kernels.")
        .def(
            "__eq__", [](const Flavour& a, const Flavour& b) { return a == b; }, py::is_operator())
        .def("__repr__", [](const Flavour& flavour) {
            return "Flavour(schedule='" + flavour.schedule + "', gemm='" + flavour.gemm +
                   "', lanes=" + std::to_string(flavour.lanes) + ", rows=" + std::to_string(flavour.rows) +
                   ", workgroup=" + std::to_string(flavour.workgroup) + ")";
        });

    py::class_<SharedPlan> plan(module, "Plan", "What a call does on a device, step by step.");
    plan.attr("__module__") = "vkrnn";
    plan.def_property_readonly("flavour", [](const SharedPlan& shared) { return shared.plan->flavour; })
        .def_property_readonly("buffers", &buffers, "Name, role and bytes of every buffer.")
        .def_property_readonly("steps", &steps, "The steps in order, as dicts.")
        .def_property_readonly(
            "bytes", [](const SharedPlan& shared) { return shared.plan->bytes(); }, "Of all buffers.")
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
