#include "matrix_units.h"

namespace vkrnn {
namespace {

std::int64_t side_of(const PlanBuilder& builder) { return builder.profile().matrix_side; }

Constants matrix_constants(const PlanBuilder& builder, const Parts& parts = {}) {
    Constants constants;
    set_matrix_constants(constants, parts, builder.profile());
    return constants;
}

// Returns everything besides the numbers that determines the contents of an operand's blocks.
std::vector<std::int64_t> layout_of(const MatrixSource& s, std::int64_t i_blocks, std::int64_t parts,
                                    std::int64_t side) {
    return {s.right,
            s.offset,
            s.batches,
            s.batch_stride,
            s.heads,
            s.head_stride,
            s.i_count,
            s.i_stride,
            s.runs,
            s.length,
            s.k_stride,
            s.run_stride,
            s.tiles.units,
            s.tiles.columns,
            s.tiles.products,
            s.tiles.slot_stride,
            std::int64_t{s.tiles.gate_order},
            i_blocks,
            parts,
            side};
}

// Returns whether the array keeps its blocks for later calls. Between calls for training, weights usually change. Then
// large blocks would only take memory. Packing handles each weight once, and the call multiplies it by all rows.
bool keeps_blocks(const Spec& spec, std::int64_t bytes) {
    constexpr std::int64_t kLarge = 4 << 20, kManyRows = 1024;
    const bool trains = spec.gradients || spec.descriptor.has(Flag::training);
    return !trains || bytes < kLarge || spec.T * spec.N < kManyRows;
}

// The elements of a buffer whose absmax is computed. `row`: the elements of each step and batch row of a sequence, else
// 0; `step`: the step of the first one.
struct AbsmaxRange {
    std::int64_t offset, count, row, step;
};

void absmax_of_range(PlanBuilder& builder, const std::string& label, std::size_t of, const AbsmaxRange& range,
                     std::size_t out, std::int64_t at, std::size_t fills) {
    abi::AbsmaxPush push{};
    push.in_ = builder.at(of, range.offset);
    push.out_ = builder.at(out, at);
    push.count = u32(range.count);
    if (const Spec& spec = builder.spec(); range.row != 0 && spec.has(Argument::lengths)) {
        push.lengths = builder.at(builder.input_of(Argument::lengths), 0);
        push.row = u32(range.row);
        push.N = u32(spec.N);
        push.first = u32(range.step);
    }
    const std::int64_t groups = ceil_div(range.count, std::int64_t{abi::kAbsmaxGroup} * abi::kAbsmaxEach);
    Constants constants = matrix_constants(builder);
    constants.stored(builder.stored({of}), builder.spec().dtype);
    builder.dispatch(label, builder.kernel("matrix_absmax", std::move(constants)), builder.groups(groups),
                     make_block(push), at > 0, fills);
}

// What a plan already has for its products on matrix units.
struct MatrixNotes {
    std::optional<std::size_t> table;
    std::map<std::pair<std::size_t, std::int64_t>, std::size_t> parts;  // blocks, by source buffer and elements
    std::map<std::pair<std::size_t, std::vector<std::int64_t>>, std::size_t> blocks;  // by source buffer and layout
};

}  // namespace

// The kernels expect each invocation to hold eight elements of a matrix.
bool has_matrix_units(const Profile& profile) {
    return profile.matrix_side != 0 &&
           profile.matrix_side * profile.matrix_side == abi::kMatrixElements * profile.subgroup_size;
}

Spec spec_on(Spec spec, const Profile& profile, bool tf32) {
    const bool rounded = tf32 && spec.dtype == Dtype::float32 && has_matrix_units(profile);
    spec.precision = rounded ? Precision::tf32 : Precision::ieee;
    spec.device_exp = has_matrix_units(profile) && rounds_operands(spec);
    return spec;
}

bool rounds_operands(const Spec& spec) { return spec.precision == Precision::tf32 || is_half(spec.dtype); }

Parts loop_parts(const Spec& spec) {
    const bool rounds = rounds_operands(spec);
    return {rounds ? 1 : 2, rounds ? 1 : 2};
}

void set_matrix_constants(Constants& constants, const Parts& parts, const Profile& profile) {
    constants.set(abi::kMatrixSide, "side", profile.matrix_side)
        .set(abi::kMatrixSubgroup, "subgroup", profile.subgroup_size)
        .set(abi::kLeftParts, "left_parts", u32(parts.left))
        .set(abi::kRightParts, "right_parts", u32(parts.right));
}

std::size_t matrix_table(PlanBuilder& builder) {
    std::optional<std::size_t>& table = builder.notes<MatrixNotes>().table;
    if (table) return *table;
    const std::string label = "matrix table";
    const std::int64_t side = side_of(builder);
    table = builder.scratch(label, 4 * side * side);
    const abi::TablePush push{builder.at(*table, 0)};
    builder.dispatch(label, builder.kernel("matrix_table", matrix_constants(builder)), {1, 1, 1}, make_block(push),
                     true);
    return *table;
}

std::size_t add_absmax(PlanBuilder& builder, const std::string& label, std::int64_t count, std::size_t fills) {
    const std::size_t buffer = builder.scratch(label, count);
    builder.clear(buffer, fills);
    return buffer;
}

void compute_absmax(PlanBuilder& builder, const std::string& label, std::size_t of, bool sequence, std::size_t out,
                    std::int64_t at, std::size_t fills) {
    const Spec& spec = builder.spec();
    const std::int64_t count = builder.count_of(of), steps = sequence ? spec.T : 0;
    const AbsmaxRange range{0, count, steps == 0 ? 0 : count / (steps * spec.N), 0};
    absmax_of_range(builder, label, of, range, out, at, fills);
}

void compute_absmax(PlanBuilder& builder, const std::string& label, std::size_t of, const TimeRows& rows,
                    std::int64_t row, std::size_t out, std::int64_t at) {
    const std::int64_t step = builder.spec().N * row;
    absmax_of_range(builder, label, of, {rows.begin * step, (rows.end - rows.begin) * step, row, rows.begin}, out, at,
                    kNoBuffer);
}

MatrixBlocks pack_blocks(PlanBuilder& builder, const std::string& label, const MatrixSource& source,
                         std::int64_t i_blocks) {
    const std::int64_t side = side_of(builder), subgroup = builder.profile().subgroup_size;
    const std::int64_t run_blocks = ceil_div(source.length, side);
    MatrixBlocks blocks;
    blocks.k_blocks = source.runs * run_blocks;
    blocks.parts = rounds_operands(builder.spec()) ? 1 : 2;
    blocks.batch_vectors = i_blocks * blocks.k_blocks * blocks.parts * subgroup;
    blocks.first = source.right ? abi::kBlocksHeader / sizeof(float) : 0;
    const std::vector<std::int64_t> layout = layout_of(source, i_blocks, blocks.parts, side);
    auto& existing = builder.notes<MatrixNotes>().blocks;
    if (const auto made = existing.find({source.buffer, layout}); made != existing.end()) {
        blocks.buffer = made->second;
        return blocks;
    }
    const std::string name = label + ": blocks";
    const std::int64_t elements = blocks.first + source.batches * source.heads * blocks.batch_vectors * kVectorBytes /
                                                     std::int64_t{sizeof(float)};
    std::size_t absmax = source.absmax, fills = kNoBuffer;
    if (absmax == kNoBuffer) {
        const bool keeps = keeps_blocks(builder.spec(), elements * std::int64_t{sizeof(float)});
        blocks.buffer =
            keeps ? builder.prepacked(name, elements, source.buffer, layout) : builder.scratch(name, elements);
        if (keeps) fills = blocks.buffer;
        absmax = add_absmax(builder, label + ": absmax", 1, fills);
        compute_absmax(builder, label + ": absmax", source.buffer, false, absmax, 0, fills);
    } else if (source.part) {
        const auto [found, is_new] =
            builder.notes<MatrixNotes>().parts.try_emplace({source.buffer, elements}, kNoBuffer);
        if (is_new) found->second = builder.scratch(name, elements);
        blocks.buffer = found->second;
    } else {
        blocks.buffer = builder.scratch(name, elements);
    }
    if (!source.part) existing[{source.buffer, layout}] = blocks.buffer;

    abi::MatrixPackPush push{};
    push.in_ = builder.at(source.buffer, source.offset);
    push.out_ = builder.at(blocks.buffer, blocks.first);
    push.table = builder.at(matrix_table(builder), 0);
    push.absmax = builder.at(absmax, source.absmax_at);
    push.in_batch = source.batch_stride;
    push.in_head = source.head_stride;
    push.heads = u32(source.heads);
    push.in_i = source.i_stride;
    push.in_k = source.k_stride;
    push.in_run = source.run_stride;
    push.in_slot = source.tiles.slot_stride;
    push.out_batch = blocks.batch_vectors;
    push.i_count = u32(source.i_count);
    push.i_blocks = u32(i_blocks);
    push.run_length = u32(source.length);
    push.run_padded = u32(run_blocks * side);
    push.k_blocks = u32(blocks.k_blocks);
    push.units = u32(source.tiles.units);
    push.columns = u32(source.tiles.columns);
    push.products = u32(source.tiles.products);
    push.gate_order = source.tiles.gate_order;
    Constants constants = matrix_constants(builder, {blocks.parts, blocks.parts});
    constants.flag(abi::kMatrixRows, "right", source.right)
        .stored(builder.stored({source.buffer}), builder.spec().dtype);
    builder.dispatch(
        label, builder.kernel("matrix_pack", std::move(constants)),
        builder.groups(ceil_div(i_blocks * blocks.k_blocks * subgroup, std::int64_t{abi::kPackGroup} * abi::kPackEach),
                       source.batches * source.heads),
        make_block(push), false, fills);
    return blocks;
}

}  // namespace vkrnn
