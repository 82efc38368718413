#include "matrix_plan.h"

#include <algorithm>

#include "plan/gpu/gpu.h"

namespace vkrnn {
namespace {

// Returns the bytes of shared memory that the sums of `slots` depth groups need.
std::int64_t sum_bytes(const MatrixShape& shape, std::int64_t side, std::uint32_t slots) {
    return slots * shape.tile_rows(side) * (shape.tile_columns(side) + 8) * std::int64_t{sizeof(float)};
}

// Returns the bytes of shared memory that kernels declare.
std::int64_t other_bytes(const MatrixShape& shape) { return 64 + shape.subgroups() * std::int64_t{sizeof(float)}; }

// Returns how many depth groups' sums are in shared memory at a time: all, or half of them; 0 if neither fits.
std::uint32_t sum_slots(const MatrixShape& shape, const Profile& profile) {
    const std::int64_t room =
        std::max(profile.max_shared_memory, profile.max_launch_shared_memory) - other_bytes(shape);
    const auto fit = [&](std::uint32_t slots) { return sum_bytes(shape, profile.matrix_side, slots) <= room; };
    if (fit(shape.depth_groups)) return shape.depth_groups;
    return shape.depth_groups % 2 == 0 && fit(shape.depth_groups / 2) ? shape.depth_groups / 2 : 0;
}

// Estimates the registers of an invocation that loads blocks ahead.
std::int64_t ahead_registers(const MatrixShape& shape, const Spec& spec) {
    constexpr std::int64_t kOther = 45;
    const Parts parts = loop_parts(spec);
    const std::int64_t rows = shape.rows, columns = shape.columns;
    return 4 * (rows * parts.left + columns * parts.right) * (shape.blocks_ahead + 1) + 8 * rows * columns + kOther;
}

}  // namespace

std::span<const TuningParameter<MatrixShape>> MatrixShape::parameters() {
    constexpr Range kCount{.least = 1, .most = 32};
    static constexpr TuningParameter<MatrixShape> kAll[] = {
        {"matrix_rows", &MatrixShape::rows, kCount},
        {"matrix_columns", &MatrixShape::columns, kCount},
        {"column_groups", &MatrixShape::column_groups, kCount},
        {"depth_groups", &MatrixShape::depth_groups, kCount},
        {"blocks_ahead", &MatrixShape::blocks_ahead, Range{.least = 1, .most = 2}}};
    return kAll;
}

MatrixShape shape_of(const PlanBuilder& builder) { return with_parameters(MatrixShape{}, builder.parameters()); }

bool fits(const MatrixShape& shape, const Spec& spec, const Profile& profile) {
    const std::int64_t most_products = spec.gradients ? 1 : spec.G();
    const std::int64_t invocations = std::int64_t{shape.subgroups()} * profile.subgroup_size;
    return shape.tile_columns(profile.matrix_side) >= most_products &&
           invocations <= profile.max_workgroup_invocations && sum_slots(shape, profile) != 0 &&
           (shape.blocks_ahead == 1 || ahead_registers(shape, spec) <= registers_of(profile) / invocations);
}

std::int64_t free_shared_memory(const MatrixShape& shape, const Profile& profile) {
    return profile.max_launch_shared_memory - other_bytes(shape) -
           sum_bytes(shape, profile.matrix_side, sum_slots(shape, profile));
}

MatrixPlan::MatrixPlan(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views, bool tagged)
    : builder_(builder),
      spec_(builder.spec()),
      weight_(inputs[Argument::recurrent_weight]),
      side_(builder.profile().matrix_side),
      units_(spec_.head_units()),
      parts_(spec_.D() * spec_.heads()),
      run_blocks_(ceil_div(units_, side_)),
      regions_(!spec_.gradients && spec_.two_phases() ? 3 : 2),
      slots_(spec_.gradients ? spec_.G() : 1),
      views_(views),
      shape_(shape_of(builder)),
      tagged_(tagged) {
    views_.divide(1);
    const std::size_t table = matrix_table(builder_);
    absmax_ = add_absmax(builder_, "absmax values", abi::kAbsmaxCount);
    if (!spec_.gradients) {
        if (spec_.has(Argument::init_state))
            compute_absmax(builder_, "absmax of the state", inputs[Argument::init_state], false, absmax_,
                           abi::kAbsmaxState);
        if (spec_.has(Argument::reset_state))
            compute_absmax(builder_, "absmax of what resets start from", inputs[Argument::reset_state],
                           spec_.has_largest(Argument::reset_state), absmax_, abi::kAbsmaxState);
        if (spec_.has(Argument::mask)) {
            const bool sequence = (spec_.mask_varies[0] || spec_.T == 1) && (spec_.mask_varies[1] || spec_.N == 1);
            compute_absmax(builder_, "absmax of the mask", inputs[Argument::mask], sequence, absmax_, abi::kAbsmaxMask);
        }
    }
    views_.address(abi::kMatrixTable, 0, table);
    views_.address(abi::kMatrixTable, 1, absmax_);

    const std::int64_t k_blocks = slots_ * run_blocks_;
    const std::int64_t block_floats = side_ * side_ * loop_parts(spec_).left / 2;
    const std::int64_t region = row_tiles() * shape_.rows * k_blocks * block_floats;
    const std::size_t operand = builder_.scratch("operand blocks", parts_ * regions_ * region);
    views_.regions(abi::kMatrixOperand, operand, regions_, region, 0, k_blocks, 0);
    if (spec_.gradients) {
        const std::int64_t row = slots_ * unit_tiles(1), all = row_tiles() * row;
        views_.regions(abi::kMatrixScales, builder_.scratch("operand scales", parts_ * regions_ * all), regions_, all,
                       row, 0, 0);
    }
    start();
}

MatrixPlan::Weights MatrixPlan::pack_weights(const Phase& phase) {
    const std::int64_t columns = shape_.tile_columns(side_), gate = spec_.H * units_;
    MatrixSource source;
    source.buffer = weight_;
    source.batches = spec_.D();
    source.batch_stride = spec_.G() * gate;
    source.heads = spec_.heads();
    source.head_stride = units_ * units_;
    source.i_count = units_;
    source.length = units_;
    source.right = true;
    if (spec_.gradients) {
        source.offset = phase.first * gate;
        source.i_stride = 1;
        source.runs = phase.count;
        source.run_stride = gate;
        source.k_stride = units_;
    } else {
        source.i_stride = units_;
        source.k_stride = 1;
        source.tiles = {columns / phase.count, columns, phase.count, gate, 0};
        source.tiles.gate_order = gate_order(spec_, phase.first, phase.count);
    }
    const std::int64_t products = spec_.gradients ? 1 : phase.count;
    const std::int64_t i_blocks = unit_tiles(products) * columns / side_;
    return {pack_blocks(builder_, phase.label + " weights", source, i_blocks), products,
            spec_.gradients ? phase.first * run_blocks_ : 0};
}

Dispatch MatrixPlan::step(const Phase& phase, const std::string& cell_kernel, const Weights& weights,
                          Constants constants, std::uint32_t steps, std::int64_t more_shared) {
    StepBlock views = views_;
    // Blocks are addressed in elements of four bytes. A 16-byte vector has four of them.
    views.weights(weights.blocks.buffer, 1, weights.blocks.batch_vectors * 4, weights.blocks.k_blocks,
                  weights.blocks.first);
    views.first_depth(weights.first_block);
    constants.stored(views.stored(), spec_.dtype);
    const std::size_t kernel =
        builder_.cell_kernel(cell_kernel + (spec_.gradients ? "_backward" : "_forward"), std::move(constants));
    Dispatch made = step_dispatch(builder_, phase.label, kernel,
                                  builder_.groups(row_tiles() * unit_tiles(weights.products), parts_), views, steps);
    made.launch_shared_memory = u32(sum_bytes(shape_, side_, sum_slots(shape_, builder_.profile())) + more_shared);
    return made;
}

std::int64_t MatrixPlan::unit_tiles(std::int64_t products) const {
    return ceil_div(units_, shape_.tile_columns(side_) / products);
}

Constants MatrixPlan::constants(const StepOptions& options, bool tagged) const {
    StepOptions of_part = options;
    of_part.part_heads = 1;
    Constants made = cell_constants(spec_, of_part);
    set_matrix_constants(made, loop_parts(spec_), builder_.profile());
    made.set(abi::kLocalSize, "workgroup", shape_.subgroups() * builder_.profile().subgroup_size)
        .set(abi::kMatrixRows, "matrix_rows", shape_.rows)
        .set(abi::kMatrixColumns, "matrix_columns", shape_.columns)
        .set(abi::kRowGroups, {}, 1)
        .set(abi::kColumnGroups, "column_groups", shape_.column_groups)
        .set(abi::kDepthGroups, "depth_groups", shape_.depth_groups)
        .set(abi::kBlocksAhead, "blocks_ahead", shape_.blocks_ahead)
        .set(abi::kMatrixSumSlots, "sum_slots", sum_slots(shape_, builder_.profile()))
        .flag(abi::kTagged, "tagged", tagged);
    return made;
}

// Adds the dispatch that fills the operand of the first step, with zeros past the last unit.
void MatrixPlan::start() {
    Constants made = constants({}, tagged_);
    made.set(abi::kLocalSize, "workgroup", abi::kElementwiseGroup)
        .set(abi::kMatrixConstants, "regions", u32(regions_))
        .flag(abi::kMatrixConstants + 1, "forward", !spec_.gradients)
        .stored(views_.stored(), spec_.dtype);
    const std::int64_t rows = tagged_ ? row_tiles() * shape_.tile_rows(side_) : spec_.N;
    const std::int64_t elements = rows * slots_ * run_blocks_ * side_;
    builder_.dispatch("start", builder_.kernel("matrix_start", std::move(made)),
                      builder_.groups(ceil_div(elements, abi::kElementwiseGroup), parts_), step_push(builder_, views_));
}

}  // namespace vkrnn
