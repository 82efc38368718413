#include "step_block.h"

#include <algorithm>

namespace vkrnn {

RowOrder row_order(const Spec& spec, Order order, std::int64_t direction) {
    const bool bidirectional = spec.descriptor.has(Flag::bidirectional);
    const bool backwards =
        bidirectional ? direction == 1 : order == Order::source && spec.descriptor.has(Flag::reverse);
    return backwards ? RowOrder{spec.T - 1, -1} : RowOrder{0, 1};
}

std::int64_t slot_of(const Spec& spec, std::size_t gate) {
    const Cell& cell = spec.cell();
    return spec.descriptor.has(Flag::other_gate_order) ? cell.other_slots.at(gate) : cell.slots.at(gate);
}

std::uint32_t gate_order(const Spec& spec, std::int64_t first, std::int64_t count) {
    std::uint32_t order = 0;
    for (std::int64_t i = 0; i < count; ++i)
        order |= static_cast<std::uint32_t>(slot_of(spec, static_cast<std::size_t>(first + i))) << (4 * i);
    return order;
}

bool has_each_cell(const Spec& spec) {
    return std::ranges::any_of(spec.cell_tensors(),
                               [&](const StateTensors& state) { return spec.has_largest(state.gradient); });
}

std::uint32_t weighed_cells(const Spec& spec) { return spec.weighs_new_cell() ? 2 : spec.weighs_cell() ? 1 : 0; }

bool recomputes(const Spec& spec) { return spec.recurs() || weighed_cells(spec) > 0; }

bool is_bounded(const Spec& spec) {
    const auto& bounds = spec.cell().bounds;
    const auto holds = [&](const Bound& bound) {
        const Activation activation = spec.descriptor.activations.at(bound.activation_slot);
        return activation == Activation::sigmoid || activation == Activation::hard_sigmoid ||
               (activation == Activation::tanh && !bound.positive);
    };
    if (spec.has(Argument::reset) && !spec.bool_reset) return false;  // the factors may be any numbers
    if (spec.blends_hidden()) return false;                           // and so may these
    const bool has_cells =
        std::ranges::any_of(spec.cell_tensors(), [&](const StateTensors& state) { return spec.has(state.initial); });
    if ((has_cells || spec.has(Argument::reset_cell)) && spec.cell().bounds_need_zero_cells) return false;
    if (spec.two_phases() && !holds({spec.cell().candidate->scale_activation_slot, false})) return false;
    return bounds && std::ranges::all_of(*bounds, holds);
}

double step_flops(const Spec& spec) {
    if (!spec.recurs()) return 0;
    return 2.0 * static_cast<double>(spec.N * spec.D() * spec.G() * spec.H * spec.head_units());
}

double loop_flops(const Spec& spec) {
    return static_cast<double>(spec.rows()) / static_cast<double>(spec.N) * step_flops(spec);
}

double recurrent_bytes(const Spec& spec) {
    if (!spec.recurs()) return 0;
    return static_cast<double>(spec.D() * spec.G() * spec.H * spec.head_units()) *
           static_cast<double>(compute_bytes(spec.dtype));
}

StateStrides state_strides(const Spec& spec, std::int64_t width) {
    return spec.torch_layout ? StateStrides{width, spec.N * width} : StateStrides{spec.D() * width, width};
}

StepBlock::StepBlock(const PlanBuilder& builder) : builder_(builder), spec_(builder.spec()) {
    for (auto& strides : params_.strides) strides.unit = 1;
    if (is_half(spec_.dtype) && builder.profile().storage_16bit) stored_ = (std::uint64_t{1} << abi::kViews) - 1;
    params_.T = static_cast<std::uint32_t>(spec_.T);
    params_.N = static_cast<std::uint32_t>(spec_.N);
    params_.H = static_cast<std::uint32_t>(spec_.H);
    params_.head_units = static_cast<std::uint32_t>(spec_.head_units());
    params_.parts = 1;
}

void StepBlock::set(abi::uint view, std::int64_t direction, std::size_t buffer, std::int64_t offset,
                    std::int64_t step) {
    const auto d = static_cast<std::size_t>(direction);
    note_type(view, buffer);
    params_.at[std::size_t{2} * view + d] = builder_.at(buffer, offset);
    params_.strides[view].step[d] = step;
}

void StepBlock::note_type(abi::uint tensor, std::size_t buffer) {
    const std::uint64_t bit = std::uint64_t{1} << tensor;
    stored_ = builder_.is_16bit(buffer) ? stored_ | bit : stored_ & ~bit;
}

void StepBlock::rows(abi::uint view, std::size_t buffer, std::int64_t row, std::int64_t part, Order order) {
    const bool packed = builder_.is_packed(buffer);
    if (packed) packed_views_ |= 1U << view;
    const std::int64_t time = packed ? row : spec_.N * row;
    for (std::int64_t d = 0; d < spec_.D(); ++d) {
        const RowOrder times = row_order(spec_, order, d);
        set(view, d, buffer, (packed ? 0 : times.first * time) + d * part, times.increment * time);
    }
}

void StepBlock::strides(abi::uint view, std::int64_t row, std::int64_t slot, std::int64_t unit) {
    params_.strides[view].row = static_cast<std::uint32_t>(row);
    params_.strides[view].slot = static_cast<std::uint32_t>(slot);
    params_.strides[view].unit = static_cast<std::uint32_t>(unit);
}

void StepBlock::sequence(abi::uint view, std::size_t buffer, std::int64_t slots, Order order) {
    const std::int64_t row = spec_.D() * slots * spec_.H;
    rows(view, buffer, row, slots * spec_.H, order);
    strides(view, row, spec_.H, 1);
}

void StepBlock::features(abi::uint view, std::size_t buffer, std::int64_t each) {
    rows(view, buffer, each, 0, Order::source);
    strides(view, each, 0, 1);
}

void StepBlock::state(abi::uint view, std::size_t buffer, std::int64_t slots) {
    const StateStrides of_state = state_strides(spec_, slots * spec_.H);
    for (std::int64_t d = 0; d < spec_.D(); ++d) set(view, d, buffer, d * of_state.direction, 0);
    strides(view, of_state.row, spec_.H, 1);
}

void StepBlock::vector(abi::uint view, std::size_t buffer, std::int64_t slots) {
    for (std::int64_t d = 0; d < spec_.D(); ++d) set(view, d, buffer, d * slots * spec_.H, 0);
    strides(view, 0, spec_.H, 1);
}

void StepBlock::mask(std::size_t buffer) {
    const std::int64_t unit = spec_.mask_varies[2] ? 1 : 0;
    const std::int64_t direction = spec_.mask_slots() * spec_.H;
    const std::int64_t row_elements = spec_.mask_varies[2] ? spec_.D() * direction : 1;
    const std::int64_t row = spec_.mask_varies[1] ? row_elements : 0;
    const std::int64_t time = spec_.mask_varies[0] ? row_elements * (spec_.mask_varies[1] ? spec_.N : 1) : 0;
    for (std::int64_t d = 0; d < spec_.D(); ++d) {
        const RowOrder rows = row_order(spec_, Order::output, d);
        set(abi::kMask, d, buffer, rows.first * time + d * direction * unit, rows.increment * time);
    }
    strides(abi::kMask, row, spec_.masks_gates() ? spec_.H : 0, unit);
}

void StepBlock::reset(std::size_t buffer) {
    const bool varies = spec_.has_largest(Argument::reset);
    const std::int64_t row = varies ? spec_.D() * spec_.H : 1;
    rows(abi::kReset, buffer, row, varies ? spec_.H : 0, Order::output);
    strides(abi::kReset, row, 0, varies ? 1 : 0);
}

void StepBlock::reset_state(abi::uint view, std::size_t buffer, bool of_steps) {
    of_steps ? sequence(view, buffer, 1, Order::output) : state(view, buffer);
}

void StepBlock::blend(abi::uint view, std::size_t buffer, std::size_t axes) {
    if (axes > 1) return sequence(view, buffer, 1, Order::output);
    if (axes == 1) return vector(view, buffer, 1);
    for (std::int64_t d = 0; d < spec_.D(); ++d) set(view, d, buffer, 0, 0);
    strides(view, 0, 0, 0);
}

void StepBlock::columns(abi::uint view, std::size_t buffer) {
    rows(view, buffer, 1, spec_.H * spec_.rows(), Order::output);
    strides(view, 1, 0, spec_.rows());
}

void StepBlock::lengths(std::size_t buffer) { params_.lengths = reference_to(buffer, 0); }

void StepBlock::weights(std::size_t buffer, std::int64_t rows_each, std::int64_t row, std::int64_t depth,
                        std::int64_t offset) {
    note_type(abi::kStoredWeights, buffer);
    const std::int64_t parts = params_.parts;
    for (std::int64_t d = 0; d < spec_.D(); ++d)
        params_.weights[d] = builder_.at(buffer, d * parts * rows_each * row + offset);
    params_.weights_part = rows_each * row;
    params_.weights_row = static_cast<std::uint32_t>(row);
    params_.depth = static_cast<std::uint32_t>(depth);
}

void StepBlock::regions(abi::uint view, std::size_t buffer, std::int64_t count, std::int64_t region, std::int64_t row,
                        std::int64_t slot, std::int64_t unit) {
    const std::int64_t parts = params_.parts;
    for (std::int64_t d = 0; d < spec_.D(); ++d) set(view, d, buffer, d * parts * count * region, region);
    strides(view, row, slot, unit);
    if (parts > 1) params_.strides[view].part = u32(count * region);
}

void StepBlock::divide(std::int64_t part_heads) {
    params_.H = u32(part_heads * spec_.head_units());
    params_.parts = u32(spec_.heads() / part_heads);
}

void StepBlock::address(abi::uint view, std::int64_t direction, std::size_t buffer) {
    set(view, direction, buffer, 0, 0);
}

void StepBlock::skip_slots(abi::uint view, std::int64_t slots) {
    const std::int64_t elements = slots * params_.strides[view].slot;
    for (std::int64_t d = 0; d < spec_.D(); ++d) {
        BufferReference& at = params_.at[std::size_t{2} * view + static_cast<std::size_t>(d)];
        at += static_cast<std::uint64_t>(elements) * builder_.element_bytes(referenced_buffer(at));
    }
}

Block StepBlock::block() const { return make_block(params_); }

}  // namespace vkrnn
