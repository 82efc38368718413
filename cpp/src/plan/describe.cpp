// Prints a plan as text that shows what a call does and what it costs.
#include <cmath>
#include <iomanip>
#include <sstream>

#include "vkrnn/plan.h"

namespace vkrnn {

std::string_view name_of(Role role) {
    switch (role) {
        case Role::input: return "input";
        case Role::result: return "result";
        case Role::scratch: return "scratch";
        case Role::constant: return "constant";
        case Role::packed: return "packed";
    }
    return "";
}

namespace {

std::string human(double value, const char* unit) {
    const char* const prefixes[] = {"", "k", "M", "G", "T", "P"};
    std::size_t prefix = 0;
    while (value >= 1000.0 && prefix < 5) {
        value /= 1000.0;
        ++prefix;
    }
    std::ostringstream text;
    text << std::fixed << std::setprecision(prefix == 0 ? 0 : 1) << value << ' ' << prefixes[prefix] << unit;
    return text.str();
}

void describe_dispatch(std::ostream& out, const Plan& plan, const Dispatch& dispatch, const char* indent) {
    const Kernel& kernel = plan.kernels[dispatch.kernel];
    out << indent << std::left << std::setw(33) << dispatch.label << ' ' << kernel.shader << '<';
    for (std::size_t i = 0; i < kernel.constants.size(); ++i) out << (i ? "," : "") << kernel.constants[i];
    out << '>';
    const auto& [x, y, z] = dispatch.groups;
    if (x != 0) out << "  groups " << x << " x " << y << " x " << z;
    if (!dispatch.after) out << "  (no barrier)";
    out << '\n';
}

void describe_step(std::ostream& out, const Plan& plan, const Step& step) {
    if (const auto* dispatch = std::get_if<Dispatch>(&step)) describe_dispatch(out, plan, *dispatch, "  ");
    if (const auto* clear = std::get_if<Clear>(&step)) out << "  clear " << plan.buffers[clear->buffer].name << '\n';
    if (const auto* loop = std::get_if<Loop>(&step)) {
        out << "  for k = " << loop->first << ", " << loop->first + loop->increment << ", ... (" << loop->count
            << " steps)\n";
        for (const Dispatch& dispatch : loop->body) describe_dispatch(out, plan, dispatch, "    ");
    }
}

}  // namespace

std::string describe(const Plan& plan, std::string_view label) {
    const Spec& spec = plan.spec;
    const Cell& cell = spec.cell();
    std::ostringstream out;
    out << (spec.gradients ? cell.gradients_name : cell.name);
    if (!label.empty()) out << " '" << label << "'";
    out << "  T=" << spec.T << " N=" << spec.N << " I=" << spec.I << " H=" << spec.H << " D=" << spec.D() << '\n';
    out << "schedule " << plan.choice.schedule << ", gemm " << plan.choice.gemm;
    for (const auto& [name, size] : plan.choice.sizes) out << ", " << name << ' ' << size;
    if (plan.precision != Precision::ieee) out << ", float32 " << name_of(plan.precision);
    out << '\n';
    out << "buffers: " << human(static_cast<double>(plan.bytes()), "B");
    if (plan.shared != 0) out << ", at most " << human(static_cast<double>(plan.peak_bytes()), "B") << " at a time";
    out << '\n';
    for (const PlanBuffer& buffer : plan.buffers)
        out << "  " << std::left << std::setw(10) << name_of(buffer.role) << std::setw(33) << buffer.name << ' '
            << human(static_cast<double>(buffer.bytes), "B") << '\n';
    out << "steps: " << plan.dispatches() << " dispatches, " << human(plan.flops, "FLOP in products") << '\n';
    for (const Step& step : plan.steps) describe_step(out, plan, step);
    return out.str();
}

}  // namespace vkrnn
