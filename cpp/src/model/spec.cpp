#include "vkrnn/spec.h"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>

#include "vkrnn/error.h"

namespace vkrnn {
namespace {

constexpr std::array kStateArguments{Argument::z_state, Argument::cell_output_fwd, Argument::normalizer_output_fwd,
                                     Argument::stabilizer_output_fwd, Argument::output_fwd};

constexpr std::array<std::string_view, 8> kIntegers{"int8",  "int16",  "int32",  "int64",
                                                    "uint8", "uint16", "uint32", "uint64"};

const std::string kTransposed = "it looks transposed";

std::string divided(const std::string& letter, std::int64_t parts) {
    return parts == 1 ? letter : letter + "/" + std::to_string(parts);
}

std::string in_h(std::int64_t factor) { return factor == 1 ? "H" : std::to_string(factor) + "H"; }

// Checks the arguments of one call. T, N and I come from the source, H from the recurrent weight. Without that, H comes
// from the input weight, or else from the source, whose channels then are the gates.
class Checker {
public:
    Checker(const Descriptor& descriptor, bool gradients, const Arguments& arguments, std::string_view label,
            CallForm form)
        : arguments_(arguments),
          packed_(form.packed),
          prefix_(message_prefix(vkrnn::cell(descriptor.cell), gradients, label)) {
        spec_.descriptor = normalised(descriptor, gradients);
        spec_.gradients = gradients;
        spec_.torch_layout = form.torch_layout;
        spec_.joined_cells = form.joined_cells && spec_.C() > 1;
        for (const auto& given : arguments) spec_.present |= 1u << static_cast<unsigned>(given.first);
        parameters_ = parameters_of(spec_);
    }

    Call check() {
        check_numbers();
        check_names();
        check_blends();
        check_each();
        check_source_rank();
        check_hidden();
        spec_.I = given_shape(Argument::source).back();
        check_input_heads();
        for (const auto& [argument, tensor] : arguments_) {
            if (argument == Argument::mask) {
                check_mask(tensor.shape);
            } else {
                check_shape(argument, tensor.shape);
            }
            if (argument == Argument::lengths) check_lengths(spec_, tensor.integers, prefix_);
        }
        if (given(Argument::recurrent_bias) && spec_.scales_product())
            spec_.present |= 1u << static_cast<unsigned>(Argument::secondary_bias);
        drop_output();
        return {spec_, spec_.gradients ? gradient_results() : forward_results()};
    }

private:
    // Normalises options that do not affect the work, so that equivalent calls share a plan.
    static Descriptor normalised(Descriptor descriptor, bool gradients) {
        if (descriptor.has(Flag::bidirectional)) descriptor.set(Flag::reverse, false);
        if (std::ranges::find(descriptor.activations, Activation::hard_sigmoid) == descriptor.activations.end()) {
            descriptor.numbers[kHardSigmoidAlphaSlot] = 0;
            descriptor.numbers[kHardSigmoidBetaSlot] = 0;
        }
        if (gradients) {
            descriptor.set(Flag::training, false);
            descriptor.set(Flag::produce_cell, false);
        } else if (descriptor.has(Flag::training) && vkrnn::cell(descriptor.cell).cell_states > 0) {
            descriptor.set(Flag::produce_cell, true);
        }
        return descriptor;
    }

    const Cell& cell() const { return spec_.cell(); }
    std::string_view operation() const { return spec_.gradients ? cell().gradients_name : cell().name; }
    bool bidirectional() const { return spec_.D() == 2; }
    bool given(Argument argument) const { return spec_.has(argument); }
    const TensorShape& given_shape(Argument argument) const { return arguments_.at(argument).shape; }
    std::string at(Argument argument) const { return prefix_ + " " + std::string(name_of(argument)) + ": "; }

    void check_numbers() const {
        for (const Property& property : cell().properties) {
            if (const auto* count = std::get_if<CountProperty>(&property.kind)) check_count(property.name, count->slot);
            const auto* number = std::get_if<NumberProperty>(&property.kind);
            if (number == nullptr) continue;
            const double got = spec_.descriptor.numbers.at(number->slot);
            if (got == number->documented_default) continue;
            if (got >= number->least && got <= number->most) continue;  // false for NaN, which cannot be part of a key
            std::ostringstream range;
            range << number->least << " to " << number->most << ", got " << got;
            throw ValueError(prefix_ + " descriptor." + std::string(property.name) + ": expected " + range.str());
        }
    }

    void check_count(std::string_view name, std::size_t slot) const {
        const std::int64_t got = spec_.descriptor.counts.at(slot);
        if (got < 1)
            throw ValueError(prefix_ + " descriptor." + std::string(name) + ": expected 1 or more, got " +
                             std::to_string(got));
    }

    // Forgets h of the forward call if the gradients do not need it, so that equivalent calls share a plan.
    void drop_output() {
        const auto output = std::ranges::find(parameters_, Argument::output_fwd, &Parameter::argument);
        if (output != parameters_.end() && output->optional && !spec_.blends())
            spec_.present &= ~(1u << static_cast<unsigned>(Argument::output_fwd));
    }

    // Throws unless a number of heads divides a size.
    void check_heads(std::string_view name, std::int64_t heads, std::string_view letter, std::int64_t size,
                     Axis axis) const {
        if (size % heads == 0) return;
        throw ValueError(prefix_ + " descriptor." + std::string(name) + ": expected a divisor of " +
                         std::string(letter) + " = " + std::to_string(size) + ", got " + std::to_string(heads) + " (" +
                         origins({axis}) + ")");
    }

    void check_input_heads() const {
        const std::int64_t heads = spec_.input_heads();
        if (heads > 1 && !given(Argument::input_weight))
            throw ValueError(prefix_ + " descriptor.input_heads: expected 1 without input_weight, got " +
                             std::to_string(heads));
        check_heads("input_heads", heads, "H", spec_.H, Axis::H);
        check_heads("input_heads", heads, "I", spec_.I, Axis::I);
    }

    void check_names() const {
        for (const auto& [argument, tensor] : arguments_) {
            const bool refused = packed_ && argument == Argument::mask;
            if (!refused && std::ranges::find(parameters_, argument, &Parameter::argument) != parameters_.end())
                continue;
            std::string known;
            for (const Parameter& parameter : parameters_) {
                known += (known.empty() ? "" : ", ") + std::string(name_of(parameter.argument));
            }
            throw TypeError(at(argument) + "unknown argument; " + std::string(operation()) + " takes " + known);
        }
        for (const Parameter& parameter : parameters_) {
            const bool optional = parameter.optional && !(packed_ && parameter.argument == Argument::lengths);
            if (optional || given(parameter.argument)) continue;
            throw ValueError(at(parameter.argument) + "expected an array, got none");
        }
        for (const Argument argument : {Argument::reset_state, Argument::reset_cell})
            if (given(argument) && !given(Argument::reset))
                throw ValueError(at(argument) + "expected a reset beside it, got none");
        if (given(Argument::mask) && !spec_.recurs())
            throw ValueError(at(Argument::mask) + "expected a recurrent_weight beside it, got none");
    }

    void check_blends() const {
        for (const Argument mask : {Argument::zoneout_mask, Argument::zoneout_cell_mask}) {
            if (given(mask) && given(Argument::leak))
                throw ValueError(at(Argument::leak) + "expected no " + std::string(name_of(mask)) +
                                 " beside it, got both");
        }
        const auto output = std::ranges::find(parameters_, Argument::output_fwd, &Parameter::argument);
        if (output == parameters_.end() || !output->optional) return;
        for (const Argument blend : {Argument::zoneout_mask, Argument::zoneout_cell_mask, Argument::leak})
            if (given(blend) && !given(Argument::output_fwd))
                throw ValueError(at(Argument::output_fwd) + "expected an array beside " + std::string(name_of(blend)) +
                                 ", got none");
    }

    [[nodiscard]] Dtype source_dtype() const {
        const std::string& name = arguments_.at(Argument::source).dtype;
        std::string known;
        for (const Dtype dtype : kDtypes) {
            if (name == name_of(dtype)) return dtype;
            known += (known.empty() ? "" : dtype == kDtypes.back() ? " or " : ", ") + std::string(name_of(dtype));
        }
        throw TypeError(at(Argument::source) + "expected dtype " + known + ", got " + name);
    }

    void check_each() {
        spec_.dtype = source_dtype();
        for (const Parameter& parameter : parameters_) {
            if (!given(parameter.argument)) continue;
            const TensorInfo& tensor = arguments_.at(parameter.argument);
            if (parameter.argument == Argument::lengths) {
                if (std::ranges::find(kIntegers, tensor.dtype) == kIntegers.end())
                    throw TypeError(at(parameter.argument) + "expected dtype int32 or another integer, got " +
                                    tensor.dtype);
            } else if (parameter.argument == Argument::reset && tensor.dtype == "bool") {
                spec_.bool_reset = true;
            } else if (tensor.dtype != name_of(spec_.dtype)) {
                const std::string also = parameter.argument == Argument::reset ? "bool or " : "";
                throw TypeError(at(parameter.argument) + "expected dtype " + also + std::string(name_of(spec_.dtype)) +
                                " like source, got " + tensor.dtype);
            }
            check_axes(parameter.argument, tensor.shape);
        }
    }

    // Only the batch may be empty. Axes are counted from the last one, because a mask may have fewer than its rule.
    void check_axes(Argument argument, const TensorShape& shape) const {
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
            const std::size_t from_end = shape.size() - axis;
            const auto is_batch = [&](const SymbolicShape& rule) {
                return from_end <= rule.size() && rule[rule.size() - from_end] == Axis::N;
            };
            if (shape[axis] > 0 || std::ranges::any_of(accepted_shapes(spec_, argument), is_batch)) continue;
            throw ValueError(at(argument) + "every axis but the batch must be at least 1, got " + to_text(shape));
        }
    }

    void check_source_rank() {
        const TensorShape& source = given_shape(Argument::source);
        if (packed_) return check_packed(source);
        if (source.size() != 3) {
            throw ValueError(at(Argument::source) + "expected 3 axes " +
                             symbols(accepted_shapes(spec_, Argument::source).front()) + ", got " + to_text(source));
        }
        spec_.T = source[0];
        spec_.N = source[1];
    }

    void check_packed(const TensorShape& source) {
        const std::vector<std::int64_t>& lengths = arguments_.at(Argument::lengths).integers;
        if (source.size() != 2)
            throw ValueError(at(Argument::source) + "expected 2 axes, packed, got " + to_text(source));
        if (lengths.empty()) throw ValueError(at(Argument::lengths) + "expected 1 or more, packed, got none");
        spec_.packed_rows = source[0];
        spec_.T = lengths.front();
        spec_.N = static_cast<std::int64_t>(lengths.size());
    }

    // Returns the argument that H comes from.
    [[nodiscard]] Argument origin_of_h() const {
        if (spec_.recurs()) return Argument::recurrent_weight;
        return given(Argument::input_weight) ? Argument::input_weight : Argument::source;
    }

    void check_hidden() {
        const Argument argument = origin_of_h();
        if (argument == Argument::recurrent_weight) return check_recurrent_weight();
        const std::int64_t heads = spec_.descriptor.counts[kHeadsSlot];
        if (heads > 1)
            throw ValueError(prefix_ + " descriptor.heads: expected 1 without recurrent_weight, got " +
                             std::to_string(heads));
        const TensorShape& shape = given_shape(argument);
        const SymbolicShape& rule = accepted_shapes(spec_, argument).front();
        const std::string message = at(argument) + "expected shape " + symbols(rule) + ", got " + to_text(shape);
        if (argument == Argument::input_weight && shape.size() != rule.size()) throw ValueError(message);
        const std::int64_t channels = argument == Argument::source ? shape.back() : shape.front();
        const std::int64_t gates = spec_.D() * spec_.G();
        if (channels % gates != 0)
            throw ValueError(message + " (" + std::to_string(channels) + " is no multiple of the " +
                             std::to_string(spec_.G()) + " gates" + (bidirectional() ? " of 2 directions)" : ")"));
        spec_.H = channels / gates;
    }

    void check_recurrent_weight() {
        const Argument argument = Argument::recurrent_weight;
        const TensorShape& shape = given_shape(argument);
        const SymbolicShape& rule = accepted_shapes(spec_, argument).front();
        const std::string got = ", got " + to_text(shape);
        if (shape.size() != rule.size()) {
            std::string message = at(argument) + "expected shape " + symbols(rule) + got;
            if (shape.size() == 2) message += " (bidirectional=True needs a weight for each of the two directions)";
            if (shape.size() == 3) message += " (weights for two directions need bidirectional=True)";
            throw ValueError(message);
        }
        const std::int64_t rows = shape[shape.size() - 2];
        const std::int64_t blocks = spec_.G() * spec_.heads();
        if (blocks > 1 && shape.back() == blocks * rows) {
            spec_.H = rows * spec_.heads();
            throw ValueError(at(argument) + "expected shape " + symbols(rule) + " = " + to_text(to_shape(spec_, rule)) +
                             got + " (" + kTransposed + ")");
        }
        if (rows % spec_.G() != 0) {
            throw ValueError(at(argument) + "expected shape " + symbols(rule) + got + " (" + std::to_string(rows) +
                             " is no multiple of the " + std::to_string(spec_.G()) + " gates)");
        }
        spec_.H = rows / spec_.G();
        check_heads("heads", spec_.heads(), "H", spec_.H, Axis::H);
    }

    void check_shape(Argument argument, const TensorShape& shape) {
        const auto& accepted = accepted_shapes(spec_, argument);
        const auto fits = [&](const SymbolicShape& rule) { return shape == to_shape(spec_, rule); };
        const auto found = std::ranges::find_if(accepted, fits);
        if (found != accepted.end()) {
            if (accepted.size() > 1 && found + 1 == accepted.end() &&
                (found->front() == Axis::T || found->front() == Axis::DH))
                spec_.largest |= 1u << static_cast<unsigned>(argument);
            return;
        }

        std::string message = at(argument) + "expected shape ";
        for (const SymbolicShape& rule : accepted) {
            message +=
                (&rule == &accepted.front() ? "" : " or ") + symbols(rule) + " = " + to_text(to_shape(spec_, rule));
        }
        message += ", got " + to_text(shape) + " (" + origins(accepted.back());
        if (argument == Argument::source && !given(Argument::input_weight)) {
            message += "; without input_weight the source holds the gates";
        }
        const TensorShape wanted = to_shape(spec_, accepted.front());
        if (argument == Argument::input_weight &&
            std::equal(shape.rbegin(), shape.rend(), wanted.begin(), wanted.end()))
            message += "; " + kTransposed;
        message += ")";
        if (std::ranges::find(kStateArguments, argument) != kStateArguments.end()) {
            message += "; it must come from " + std::string(cell().name) + " with training=True and these arguments";
        }
        throw ValueError(message);
    }

    // Accepts any shape with up to 3 axes that broadcasts. The mask does not vary along axes of size 1.
    void check_mask(const TensorShape& shape) {
        std::string expected;
        for (const SymbolicShape& rule : accepted_shapes(spec_, Argument::mask)) {
            const TensorShape full = to_shape(spec_, rule);
            if (broadcasts(shape, full)) {
                for (std::size_t axis = 0; axis < full.size(); ++axis) {
                    const std::size_t missing = full.size() - shape.size();
                    spec_.mask_varies[axis] = axis >= missing && shape[axis - missing] != 1;
                }
                if (!expected.empty()) spec_.largest |= 1u << static_cast<unsigned>(Argument::mask);
                return;
            }
            if (expected.empty() || spec_.G() > 1)
                expected += (expected.empty() ? "" : " or ") + symbols(rule) + " = " + to_text(full);
        }
        throw ValueError(at(Argument::mask) + "expected a shape that broadcasts to " + expected + ", got " +
                         to_text(shape) + " (" + origins(accepted_shapes(spec_, Argument::mask).front()) + ")");
    }

    static bool broadcasts(const TensorShape& shape, const TensorShape& full) {
        if (shape.size() > full.size()) return false;
        const auto fits = [](std::int64_t size, std::int64_t wanted) { return size == 1 || size == wanted; };
        return std::equal(shape.rbegin(), shape.rend(), full.rbegin(), fits);
    }

    std::string symbols(const SymbolicShape& rule) const {
        std::string text = "[";
        for (const Axis axis : rule) {
            if (text.size() > 1) text += ", ";
            switch (axis) {
                case Axis::T: text += "T"; break;
                case Axis::N: text += "N"; break;
                case Axis::I: text += "I"; break;
                case Axis::D: text += std::to_string(spec_.D()); break;
                case Axis::one: text += "1"; break;
                case Axis::head_units: text += divided("H", spec_.heads()); break;
                case Axis::head_features: text += divided("I", spec_.input_heads()); break;
                default: text += in_h(multiple_of_h(spec_, axis));
            }
        }
        return text + "]";
    }

    // Says where the letters of a shape come from:
    // "N = 3 from source.shape[1], H = 4 from recurrent_weight.shape[0] / 4".
    std::string origins(const SymbolicShape& rule) const {
        const Argument of_h = origin_of_h();
        const std::size_t axis_of_h = of_h == Argument::source ? 2 : spec_.recurs() && bidirectional() ? 1 : 0;
        const std::int64_t gates = spec_.recurs() ? spec_.G() : spec_.D() * spec_.G();
        std::string text;
        bool has_h = false;
        const auto add = [&](const std::string& letter, std::int64_t value, const std::string& from) {
            text += (text.empty() ? "" : ", ") + letter + " = " + std::to_string(value) + " from " + from;
        };
        for (const Axis axis : rule) {
            if (axis == Axis::T) add("T", spec_.T, "source.shape[0]");
            if (axis == Axis::N) add("N", spec_.N, "source.shape[1]");
            if (axis == Axis::I || axis == Axis::head_features) add("I", spec_.I, "source.shape[2]");
            has_h = has_h || axis == Axis::head_units || multiple_of_h(spec_, axis) != 0;
        }
        if (has_h)
            add("H", spec_.H,
                std::string(name_of(of_h)) + ".shape[" + std::to_string(axis_of_h) + "]" +
                    (gates == 1 ? "" : " / " + std::to_string(gates)));
        return text;
    }

    std::vector<ResultInfo> forward_results() const {
        std::vector<ResultInfo> results;
        for (const Output output : outputs_of(spec_))
            results.push_back({std::string(name_of(output)), shape_of(spec_, output)});
        return results;
    }

    std::vector<ResultInfo> gradient_results() const {
        std::vector<ResultInfo> results;
        for (const Argument argument : gradient_order_of(spec_))
            results.push_back({std::string(name_of(argument)), given_shape(argument)});
        return results;
    }

    const Arguments& arguments_;
    bool packed_;
    std::string prefix_;
    Spec spec_;
    std::vector<Parameter> parameters_;
};

}  // namespace

std::string message_prefix(const Cell& cell, bool gradients, std::string_view label) {
    const std::string operation(gradients ? cell.gradients_name : cell.name);
    return label.empty() ? "[" + operation + "]" : "[" + operation + " '" + std::string(label) + "']";
}

void check_lengths(const Spec& spec, std::span<const std::int64_t> lengths, const std::string& prefix) {
    const std::int64_t least = spec.packed() ? 1 : 0, most = spec.packed() ? spec.packed_rows : spec.T;
    std::int64_t sum = 0;
    for (std::size_t n = 0; n < lengths.size(); sum += lengths[n++]) {
        if (lengths[n] >= least && lengths[n] <= most && !(spec.packed() && n > 0 && lengths[n] > lengths[n - 1]))
            continue;
        throw ValueError(prefix + " lengths: expected " + std::to_string(least) + " to " +
                         (spec.packed() ? "" : "T = ") + std::to_string(most) +
                         (spec.packed() ? ", longest first" : "") + ", got " + std::to_string(lengths[n]) + " at [" +
                         std::to_string(n) + "]");
    }
    if (spec.packed() && sum != spec.packed_rows)
        throw ValueError(prefix + " source: expected " + std::to_string(sum) + " rows, the sum of lengths, got " +
                         std::to_string(spec.packed_rows));
}

Call check_call(const Descriptor& descriptor, bool gradients, const Arguments& arguments, std::string_view label,
                CallForm form) {
    return Checker(descriptor, gradients, arguments, label, form).check();
}

}  // namespace vkrnn
