// Prints a plan as text that shows what a call does and what it costs.
#include <algorithm>
#include <array>
#include <bit>
#include <iomanip>
#include <span>
#include <sstream>

#include "vkrnn/plan.h"

namespace vkrnn {

std::string_view name_of(Role role) {
    switch (role) {
        case Role::input: return "input";
        case Role::result: return "result";
        case Role::scratch: return "scratch";
        case Role::constant: return "constant";
        case Role::prepacked: return "packed";  // in the texts of plans and in Plan.buffers
        case Role::failed_waits: return "failed waits";
    }
    return "";
}

namespace {

// Returns the words of a constant's value.
std::span<const std::uint32_t> words_of(const Kernel& kernel, const ConstantName& name) {
    using As = ConstantName::As;
    const bool is_real = name.as == As::float32 || name.as == As::float64;
    const std::size_t count = name.as == As::activations ? kActivationSlots : is_real ? 2 : 1;
    return std::span(kernel.constants).subspan(name.number, count);
}

ConstantValue value_of(std::span<const std::uint32_t> words, ConstantName::As as) {
    using As = ConstantName::As;
    std::ostringstream text;
    switch (as) {
        case As::count: break;
        case As::flag: return words[0] != 0;
        case As::slots: text << "0x" << std::hex << words[0]; return text.str();
        case As::dtype: return std::string(name_of(static_cast<Dtype>(words[0])));
        case As::float32: return double{std::bit_cast<float>(words[0])};
        case As::float64: return std::bit_cast<double>(std::array{words[0], words[1]});
        case As::activations:
            while (words.back() == 0) words = words.first(words.size() - 1);
            for (const std::uint32_t each : words)
                text << (text.tellp() > 0 ? " " : "") << name_of(static_cast<Activation>(each));
            return text.str();
    }
    return words[0];
}

}  // namespace

std::vector<std::pair<std::string_view, ConstantValue>> named_constants(const Kernel& kernel) {
    std::vector<ConstantName> names = kernel.names;
    std::ranges::stable_sort(names, {}, &ConstantName::number);
    std::vector<std::pair<std::string_view, ConstantValue>> shown;
    for (const ConstantName& name : names) {
        const std::span words = words_of(kernel, name);
        if (std::ranges::any_of(words, [](std::uint32_t word) { return word != 0; }))
            shown.emplace_back(name.name, value_of(words, name.as));
    }
    return shown;
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

// Writes the kernel's constants below its dispatch: "workgroup 32, rows 2, vector_loads".
void describe_constants(std::ostream& out, const Kernel& kernel, const std::string& indent) {
    constexpr std::size_t kMostColumns = 110;
    std::string line;
    for (const auto& [name, value] : named_constants(kernel)) {
        std::ostringstream text;
        text << name;
        if (!std::holds_alternative<bool>(value)) std::visit([&](const auto& shown) { text << ' ' << shown; }, value);
        if (!line.empty() && indent.size() + line.size() + text.str().size() > kMostColumns) {
            out << indent << line << ",\n";
            line.clear();
        }
        line += (line.empty() ? "" : ", ") + text.str();
    }
    if (!line.empty()) out << indent << line << '\n';
}

void describe_dispatch(std::ostream& out, const Plan& plan, const Dispatch& dispatch, const std::string& indent) {
    const Kernel& kernel = plan.kernels[dispatch.kernel];
    out << indent << std::left << std::setw(33) << dispatch.label << ' ' << kernel.shader;
    const auto& [x, y, z] = dispatch.groups;
    if (x != 0) out << "  groups " << x << " x " << y << " x " << z;
    if (!dispatch.after) out << "  (no barrier)";
    out << '\n';
    describe_constants(out, kernel, indent + "    ");
}

class Steps {
public:
    Steps(std::ostream& out, const Plan& plan, std::string indent)
        : out_(out), plan_(plan), indent_(std::move(indent)) {}

    void operator()(const Dispatch& dispatch) const { describe_dispatch(out_, plan_, dispatch, indent_); }
    void operator()(const Clear& clear) const {
        out_ << indent_ << "clear " << plan_.buffers[clear.buffer].name << '\n';
    }
    void operator()(const Loop& loop) const {
        out_ << indent_ << "for k = " << loop.first << ", " << loop.first + loop.increment << ", ... (" << loop.count
             << " steps)\n";
        for (const Dispatch& dispatch : loop.body) describe_dispatch(out_, plan_, dispatch, indent_ + "  ");
    }
    void operator()(const Branches& branches) const {
        for (std::size_t i = 0; i < branches.branches.size(); ++i)
            show("branch " + std::to_string(i + 1) + " of " + std::to_string(branches.branches.size()),
                 branches.branches[i]);
    }
    // Shows the first piece of each lane. The others are alike.
    void operator()(const Wavefront& wavefront) const {
        for (std::size_t l = 0; l < wavefront.lanes.size(); ++l) {
            const Wavefront::Lane& lane = wavefront.lanes[l];
            const std::string name = "lane " + std::to_string(l + 1) + " of " + std::to_string(wavefront.lanes.size());
            show(name + ", before its pieces", lane.before);
            show(name + ", the first of " + std::to_string(lane.pieces.size()) + " pieces", lane.pieces.front());
            show(name + ", after its pieces", lane.after);
        }
    }

private:
    void show(const std::string& name, const Sequence& steps) const {
        if (steps.empty()) return;
        out_ << indent_ << name << '\n';
        for (const auto& step : steps) std::visit(Steps(out_, plan_, indent_ + "  "), step);
    }

    std::ostream& out_;
    const Plan& plan_;
    std::string indent_;
};

}  // namespace

std::string describe(const Plan& plan, std::string_view label) {
    const Spec& spec = plan.spec;
    const Cell& cell = spec.cell();
    std::ostringstream out;
    out << (spec.gradients ? cell.gradients_name : cell.name);
    if (!label.empty()) out << " '" << label << "'";
    out << "  T=" << spec.T << " N=" << spec.N << " I=" << spec.I << " H=" << spec.H << " D=" << spec.D() << '\n';
    out << "schedule " << plan.choice.schedule << ", gemm " << plan.choice.gemm;
    for (const auto& [name, size] : plan.choice.parameters) out << ", " << name << ' ' << size;
    if (plan.spec.precision != Precision::ieee) out << ", float32 " << name_of(plan.spec.precision);
    out << '\n';
    out << "buffers: " << human(static_cast<double>(plan.bytes()), "B");
    if (plan.shared != 0) out << ", at most " << human(static_cast<double>(plan.peak_bytes()), "B") << " at a time";
    out << '\n';
    for (const PlanBuffer& buffer : plan.buffers)
        out << "  " << std::left << std::setw(10) << name_of(buffer.role) << std::setw(33) << buffer.name << ' '
            << human(static_cast<double>(buffer.bytes), "B") << '\n';
    out << "steps: " << plan.dispatches() << " dispatches, " << human(plan.flops, "FLOP in products") << '\n';
    for (const Step& step : plan.steps) std::visit(Steps(out, plan, "  "), step);
    return out.str();
}

}  // namespace vkrnn
