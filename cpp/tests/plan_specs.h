// Specs and plans for tests of planning, and what these tests look up in plans.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <string>
#include <variant>
#include <vector>

#include "plan/step_block.h"
#include "vkrnn/plan.h"

namespace vkrnn {

inline Spec make_spec(CellKind kind, std::initializer_list<Flag> flags = {},
                      std::initializer_list<Argument> present = {}) {
    Spec spec;
    spec.descriptor = default_descriptor(kind);
    for (const Flag flag : flags) spec.descriptor.set(flag, true);
    spec.T = 5;
    spec.N = 3;
    spec.I = 7;
    spec.H = 4;
    for (const Argument argument : {Argument::source, Argument::recurrent_weight, Argument::input_weight})
        spec.present |= 1u << static_cast<unsigned>(argument);
    for (const Argument argument : present) spec.present |= 1u << static_cast<unsigned>(argument);
    return spec;
}

inline Spec gradients_of(Spec spec) {
    spec.gradients = true;
    const Cell& cell = spec.cell();
    for (const Parameter& parameter : cell.gradients)
        if (!parameter.optional || parameter.argument == Argument::source_gradient)
            spec.present |= 1u << static_cast<unsigned>(parameter.argument);
    return spec;
}

inline Profile gpu() {
    Profile profile;
    profile.type = DeviceType::discrete_gpu;
    profile.subgroup_size = 32;
    profile.max_group_count = 65535;
    return profile;
}

inline Profile limited_cpu() {
    Profile profile;
    profile.type = DeviceType::cpu;
    profile.subgroup_size = 8;
    profile.max_group_count = 65535;
    profile.max_loop_iterations = 65535;
    return profile;
}

// Returns a plan with the portable loop, for any device.
inline Plan plan_by_steps(const Spec& spec, const Profile& profile) {
    return make_plan(spec, profile, {"steps", "", {}});
}

inline std::vector<Dispatch> outside_loops(const Plan& plan) {
    std::vector<Dispatch> found;
    for (const Step& step : plan.steps)
        if (const auto* dispatch = std::get_if<Dispatch>(&step)) found.push_back(*dispatch);
    return found;
}

inline std::vector<Loop> loops(const Plan& plan) {
    std::vector<Loop> found;
    for (const Step& step : plan.steps)
        if (const auto* loop = std::get_if<Loop>(&step)) found.push_back(*loop);
    return found;
}

inline std::size_t buffer_named(const Plan& plan, const std::string& name) {
    for (std::size_t i = 0; i < plan.buffers.size(); ++i)
        if (plan.buffers[i].name == name) return i;
    ADD_FAILURE() << "no buffer named " << name;
    return 0;
}

inline abi::StepParams parameters_of(const Plan& plan) {
    const Block& block = plan.buffers[buffer_named(plan, "parameters")].contents;
    abi::StepParams params;
    std::memcpy(&params, block.bytes.data(), sizeof(params));
    return params;
}

inline std::vector<std::string> labels_of(const Plan& plan) {
    std::vector<std::string> labels;
    for (const Dispatch& dispatch : outside_loops(plan)) labels.push_back(dispatch.label);
    return labels;
}

// A forward and a gradient call with every argument of the cell, lengths included, that can be given at the same time.
inline std::vector<Spec> everything(CellKind kind) {
    Spec spec = make_spec(kind, {Flag::bidirectional, Flag::training});
    if (spec.C() > 0) spec.descriptor.set(Flag::produce_cell, true);
    for (const Parameter& parameter : spec.cell().forward)
        if (parameter.argument != Argument::zoneout_mask)
            spec.present |= 1u << static_cast<unsigned>(parameter.argument);
    Spec gradients = gradients_of(spec);
    gradients.present |= 1u << static_cast<unsigned>(Argument::output_fwd);
    gradients.descriptor.set(Flag::training, false);
    return {spec, gradients};
}

inline std::vector<Spec> everything() {
    std::vector<Spec> specs;
    for (const Cell& cell : cells())
        for (const Spec& spec : everything(cell.kind)) specs.push_back(spec);
    return specs;
}

inline Plan plan_of(Spec spec, Dtype dtype) {
    Profile profile = gpu();
    profile.float64 = true;
    spec.dtype = dtype;
    return plan_by_steps(spec, profile);
}

inline bool ends_with(const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace vkrnn
