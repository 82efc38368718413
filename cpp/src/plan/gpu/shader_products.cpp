#include "shader_products.h"

#include <algorithm>

#include "portable/portable_abi.h"

namespace vkrnn {
namespace {

constexpr std::int64_t kRowsPerPart = 64;
constexpr std::int64_t kMaxParts = 1024;

}  // namespace

double product_flops(const Spec& spec) {
    const double each = 2.0 * static_cast<double>(spec.T * spec.N) * static_cast<double>(spec.D() * spec.G() * spec.H);
    const double input = spec.has(Argument::input_weight) ? each * static_cast<double>(spec.head_features()) : 0;
    return spec.gradients ? 2 * input + each * static_cast<double>(spec.head_units()) : input;
}

void add_parts(PlanBuilder& builder, const std::string& label, std::size_t from, std::int64_t parts,
               std::int64_t columns, std::size_t out, std::int64_t out_offset) {
    RowSum sum;
    sum.rows = parts;
    sum.width = columns;
    sum.in = {from, 0, columns, 0, 0};
    sum.out = out;
    sum.out_offset = out_offset;
    builder.row_sum(label, sum);
}

void ShaderProducts::row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum,
                             bool independent) const {
    const std::int64_t columns = sum.directions * sum.gates * sum.width;
    const std::int64_t part = std::max(kRowsPerPart, ceil_div(sum.rows, kMaxParts));
    const std::int64_t parts = ceil_div(sum.rows, part);
    const std::size_t out = parts == 1 ? sum.out : builder.scratch(label + " parts", parts * columns);
    const std::int64_t out_offset = parts == 1 ? sum.out_offset : 0;

    abi::ReducePush push{};
    push.in_ = builder.at(sum.in.buffer, sum.in.offset);
    push.out_ = builder.at(out, out_offset);
    push.rows = u32(sum.rows);
    push.part = u32(part);
    push.width = u32(sum.width);
    push.gates = u32(sum.gates);
    push.directions = u32(sum.directions);
    push.in_row = u32(sum.in.row);
    push.in_direction = u32(sum.in.direction);
    push.in_gate = u32(sum.in.gate);
    if (sum.factor) {
        push.factor = builder.at(sum.factor->buffer, sum.factor->offset);
        push.factor_row = u32(sum.factor->row);
        push.factor_direction = u32(sum.factor->direction);
        push.factor_gate = u32(sum.factor->gate);
    }
    Constants constants;
    constants.flag(abi::kReduceFactor, "factor", sum.factor.has_value())
        .stored(builder.stored({sum.in.buffer, sum.factor ? sum.factor->buffer : PlanBuilder::kZeros, out}),
                builder.spec().dtype);
    builder.dispatch(label, builder.kernel("reduce", std::move(constants)),
                     builder.groups(ceil_div(columns, abi::kElementwiseGroup), parts), make_block(push), independent);
    if (parts == 1) return;

    add_parts(builder, label + ": add parts", out, parts, columns, sum.out, sum.out_offset);
}

void ShaderProducts::convert(PlanBuilder& builder, const std::string& label, const Conversion& conversion,
                             bool independent) const {
    abi::ConvertPush push{};
    push.in_ = builder.at(conversion.from, conversion.offset);
    push.out_ = builder.at(conversion.to, conversion.offset);
    push.count = u32(conversion.elements);
    if (conversion.from_bool)
        return builder.dispatch(label, builder.kernel("factors", {}),
                                builder.groups(ceil_div(conversion.elements, abi::kElementwiseGroup)), make_block(push),
                                independent);
    Constants constants;
    constants.flag(abi::kConvertBfloat, "bfloat16", builder.spec().dtype == Dtype::bfloat16)
        .flag(abi::kConvertNarrow, "narrow", conversion.narrow);
    const std::int64_t workgroups =
        ceil_div(conversion.elements, std::int64_t{abi::kElementwiseGroup} * abi::kConvertEach);
    builder.dispatch(label, builder.kernel("convert", std::move(constants)), builder.groups(workgroups),
                     make_block(push), independent);
}

void ShaderProducts::last_rows(PlanBuilder& builder, const std::string& label, const LastRows& rows,
                               bool independent) const {
    const Spec& spec = builder.spec();
    const bool has_lengths = rows.lengths != PlanBuilder::kZeros, has_initial = rows.initial != PlanBuilder::kZeros;
    abi::LastRowsPush push{};
    push.in_ = builder.at(rows.sequence, 0);
    push.initial = builder.at(rows.initial, 0);
    push.out_ = builder.at(rows.out, 0);
    push.lengths = reference_to(rows.lengths, 0);
    push.T = u32(spec.T);
    push.N = u32(spec.N);
    push.width = u32(rows.width);
    push.directions = u32(spec.D());
    const StateStrides of_state = state_strides(spec, rows.width);
    push.state_row = u32(of_state.row);
    push.state_direction = u32(of_state.direction);
    Constants constants;
    constants.flag(abi::kLastLengths, "lengths", has_lengths)
        .flag(abi::kLastInitial, "initial", has_initial)
        .stored(builder.stored({rows.sequence, rows.initial, rows.out}), spec.dtype);
    const std::int64_t groups = ceil_div(spec.N * spec.D() * rows.width, abi::kElementwiseGroup);
    builder.dispatch(label, builder.kernel("last_rows", std::move(constants)), builder.groups(groups), make_block(push),
                     independent);
}

void ShaderProducts::combine(PlanBuilder& builder, const std::string& label, const Combination& combination,
                             bool independent) const {
    abi::CombinePush push{};
    push.a = builder.at(combination.a, combination.offset);
    push.b = builder.at(combination.b, combination.offset);
    push.out_ = builder.at(combination.out, combination.offset);
    push.count = u32(combination.elements);
    push.limit = u32(combination.limit);
    push.period = u32(combination.period);
    Constants constants;
    constants.flag(abi::kCombineAdds, "add", combination.operation == Combination::add)
        .stored(builder.stored({combination.a, combination.b, combination.out}), builder.spec().dtype);
    const std::int64_t groups = ceil_div(combination.elements, abi::kElementwiseGroup);
    builder.dispatch(label, builder.kernel("combine", std::move(constants)), builder.groups(groups), make_block(push),
                     independent);
}

void ShaderProducts::copy_rows(PlanBuilder& builder, const std::string& label, const RowCopy& copy,
                               bool independent) const {
    const auto& [from, to, rows, width] = copy;
    const bool vectors = (from.offset | from.row | to.offset | to.row | width) % 4 == 0;
    const std::int64_t runs = vectors ? width / 4 : width;
    abi::CopyRowsPush push{};
    push.in_ = builder.at(from.buffer, from.offset);
    push.out_ = builder.at(to.buffer, to.offset);
    push.count = u32(rows * runs);
    push.width = u32(runs);
    push.in_row = u32(from.row);
    push.out_row = u32(to.row);
    Constants constants;
    constants.flag(abi::kCopyVectors, "vectors", vectors)
        .stored(builder.stored({from.buffer, to.buffer}), builder.spec().dtype);
    const std::int64_t groups = ceil_div(rows * runs, abi::kElementwiseGroup);
    builder.dispatch(label, builder.kernel("copy_rows", std::move(constants)), builder.groups(groups), make_block(push),
                     independent);
}

}  // namespace vkrnn
