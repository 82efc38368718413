#include "native_plan.h"

#include "plan/cpu_work.h"

namespace vkrnn {

namespace {

// Returns the number of elements in a SIMD vector, in the type in which the call computes.
std::int64_t lanes_of(const PlanBuilder& builder) {
    const std::int64_t lanes = builder.profile().subgroup_size;
    return builder.spec().dtype == Dtype::float64 ? std::max<std::int64_t>(1, lanes / 2) : lanes;
}

constexpr std::int64_t kFewRows = 8;

// A weight's matrices B(n, k) as panels, with strides in elements: see cpu::PackWork.
struct Panels {
    std::int64_t n, k, batches;
    std::int64_t in_n, in_k, in_batch;
    std::int64_t blocks = 1, in_block = 0, directions = 1, in_direction = 0;
    std::int64_t head_units = n, in_head = 0;
};

// Adds the step that packs an argument, and returns the buffer with its panels. An array keeps its panels from call to
// call. `optional`: see Prepacking.
std::size_t pack(PlanBuilder& builder, const std::string& label, std::size_t from, const Panels& panels,
                 bool optional = false) {
    const std::int64_t lanes = lanes_of(builder);
    const std::size_t buffer = builder.prepacked(
        label, cpu::panel_elements(panels.n, panels.k, panels.directions * panels.blocks * panels.batches, lanes), from,
        {lanes, panels.n, panels.k, panels.batches, panels.in_n, panels.in_k, panels.in_batch, panels.blocks,
         panels.in_block, panels.directions, panels.in_direction, panels.head_units, panels.in_head},
        optional);
    cpu::PackWork work{};
    work.in = builder.at(from, 0);
    work.out = builder.at(buffer, 0);
    work.in_n = panels.in_n;
    work.in_k = panels.in_k;
    work.in_batch = panels.in_batch;
    work.n = panels.n;
    work.k = panels.k;
    work.batches = panels.batches;
    work.in_block = panels.in_block;
    work.blocks = panels.blocks;
    work.in_direction = panels.in_direction;
    work.directions = panels.directions;
    work.in_head = panels.in_head;
    work.head_units = panels.head_units;
    Dispatch made{label, builder.kernel("pack", {}), {}, make_block(work)};
    made.fills = buffer;
    builder.add(std::move(made));
    return buffer;
}

// The panels of the weight that the parts of a product share.
struct PartPanels {
    std::size_t buffer = PlanBuilder::kZeros;
};

std::size_t panels_of_parts(PlanBuilder& builder, const std::string& label, const Product& p, std::int64_t row,
                            std::int64_t column) {
    std::size_t& buffer = builder.notes<PartPanels>().buffer;
    if (buffer == PlanBuilder::kZeros)
        builder.before_lane([&] {
            buffer = pack(builder, "pack for " + label, p.b.buffer, {p.n, p.k, 1, row, column, 0});
        });
    return buffer;
}

// The buffer with the table of live rows.
struct LiveRows {
    std::size_t table = PlanBuilder::kZeros;  // a call without lengths never reads it
};

// Adds the step that makes the table of live rows, which the kernels of a call with lengths read.
void order_rows(PlanBuilder& builder, const Inputs& inputs) {
    const Spec& spec = builder.spec();
    if (!spec.has(Argument::lengths)) return;
    const bool lines = spec.gradients && !spec.packed();
    const std::int64_t bytes = cpu::live_rows_elements(spec.T, spec.N, lines) * std::int64_t{sizeof(std::int64_t)};
    const auto element = static_cast<std::int64_t>(compute_bytes(spec.dtype));
    const std::size_t table = builder.scratch("live rows", ceil_div(bytes, element));
    builder.notes<LiveRows>().table = table;
    cpu::OrderWork work{};
    work.lengths = builder.at(inputs[Argument::lengths], 0);
    work.out = builder.at(table, 0);
    work.T = spec.T;
    work.N = spec.N;
    work.lines = lines;
    builder.add(Dispatch{"order rows", builder.kernel("order_rows", {}), {}, make_block(work)});
}

BufferReference live_rows(PlanBuilder& builder) { return builder.at(builder.notes<LiveRows>().table, 0); }

// Returns the parameters with which a product or sum over the rows of sequences skips rows that are not live.
cpu::LiveWork live_work(const PlanBuilder& builder, std::size_t a, std::size_t b, std::size_t c, bool along_k) {
    const Spec& spec = builder.spec();
    if (!spec.has(Argument::lengths)) return {};
    const auto at_lines = [&](std::size_t buffer) { return builder.is_packed(buffer) ? 0U : 1U; };
    return {spec.T, spec.N, at_lines(a), along_k ? at_lines(b) : 0, along_k ? 0 : at_lines(c), along_k ? 1U : 0U};
}

// Returns how many heads a block of units has. Heads of few vectors share a block, because cells compute two vectors at
// a time. Without recurrent products, all units are a block, because threads share its units without waiting for each
// other.
std::int64_t heads_of_block(const PlanBuilder& builder) {
    const Spec& spec = builder.spec();
    if (!spec.recurs()) return spec.heads();
    const std::int64_t lanes = lanes_of(builder);
    if (spec.head_units() >= 2 * lanes) return 1;
    std::int64_t heads = 1;
    while (heads < spec.heads() && (heads * spec.head_units() < 4 * lanes || spec.heads() % heads != 0)) ++heads;
    return heads;
}

void loop(PlanBuilder& builder, const std::string& label, const std::string& cell_kernel, const StepBlock& block,
          std::uint32_t keep, bool is_lane, cpu::LoopWork work = {}) {
    const Spec& spec = builder.spec();
    work.params = block.params();
    work.adds_bias = spec.has(Argument::bias);
    work.has_initial =
        spec.gradients ? spec.passes_to_initial() : spec.has(Argument::init_state) || spec.has(Argument::reset_state);
    work.two_phases = spec.two_phases();
    work.recurs = spec.recurs();
    work.directions = static_cast<std::uint32_t>(spec.D());
    if (work.blocks == 0) {
        work.blocks = 1;
        work.block_units = spec.H;
    }
    work.head_units = spec.head_units();
    work.input_head_units = spec.input_head_units();
    work.live = live_rows(builder);
    work.has_lengths = spec.has(Argument::lengths);
    work.packed_views = block.packed_views();
    const std::size_t kernel = builder.cell_kernel(cell_kernel, cell_constants(spec, {0, keep}));
    const auto add = [&](const TimeRows& rows) {
        work.steps_before = rows.begin;
        work.steps_after = spec.T - rows.end;
        builder.add(Dispatch{label, kernel, {}, make_block(work)});
    };
    if (is_lane)
        builder.add_lane(add);
    else
        add({0, spec.T});
}

void run_forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) {
    const Spec& spec = builder.spec();
    const std::int64_t H = spec.H, G = spec.G(), D = spec.D(), lanes = lanes_of(builder);
    // A single step of few rows reads each weight about once, so writing panels would not pay off.
    const bool has_heads = (spec.recurs() && spec.heads() > 1) || spec.input_heads() > 1;
    const bool optional = spec.T == 1 && spec.N <= kFewRows && !is_half(spec.dtype) && !has_heads;
    cpu::LoopWork work{};
    work.block_units = heads_of_block(builder) * spec.head_units();
    work.blocks = H / work.block_units;
    const auto pack_blocks = [&](Argument argument, std::int64_t depth) {
        const Panels panels{.n = work.block_units,
                            .k = depth,
                            .batches = G,
                            .in_n = depth,
                            .in_k = 1,
                            .in_batch = H * depth,
                            .blocks = work.blocks,
                            .in_block = work.block_units * depth,
                            .directions = D,
                            .in_direction = G * H * depth};
        return pack(builder, "pack " + std::string(name_of(argument)), inputs[argument], panels, optional);
    };
    const auto direction = [&](std::int64_t depth) {
        return cpu::panel_elements(work.block_units, depth, work.blocks * G, lanes);
    };
    if (spec.recurs()) {
        const std::int64_t depth = spec.head_units();
        views.weights(pack_blocks(Argument::recurrent_weight, depth), 1, direction(depth), depth);
        for (std::int64_t d = 0; d < D; ++d)
            work.weight_rows[d] = builder.at(inputs[Argument::recurrent_weight], d * G * H * depth);
    }
    if (spec.has(Argument::input_weight)) {
        work.features = spec.head_features();
        const std::size_t panels = pack_blocks(Argument::input_weight, work.features);
        for (std::int64_t d = 0; d < D; ++d) {
            work.input_weights[d] = builder.at(panels, d * direction(work.features));
            work.input_weight_rows[d] = builder.at(inputs[Argument::input_weight], d * G * H * work.features);
        }
        views.features(abi::kProjected, inputs[Argument::source], spec.I);
        builder.count_flops(2.0 * static_cast<double>(spec.rows()) * static_cast<double>(D * G * H * work.features));
    }
    order_rows(builder, inputs);
    loop(builder, "time loop", "forward", views, keeps_training_state(spec), spec.piece_steps != 0, work);
}

// Packs the recurrent weight as the backward loop reads it.
void pack_transposed(PlanBuilder& builder, const Inputs& inputs, const cpu::LoopWork& work, StepBlock& views) {
    const Spec& spec = builder.spec();
    const std::int64_t H = spec.H, G = spec.G(), depth = spec.head_units();
    Panels panels{.n = H, .k = G * H, .batches = 1, .in_n = 1, .in_k = H, .in_batch = 0};
    if (spec.heads() > 1)
        panels = {.n = work.block_units,
                  .k = depth,
                  .batches = G,
                  .in_n = 1,
                  .in_k = depth,
                  .in_batch = H * depth,
                  .blocks = work.blocks,
                  .in_block = work.block_units * depth,
                  .head_units = depth,
                  .in_head = depth * depth};
    panels.directions = spec.D();
    panels.in_direction = G * H * depth;
    const std::size_t weights = pack(builder, "pack recurrent_weight", inputs[Argument::recurrent_weight], panels);
    views.weights(weights, 1,
                  cpu::panel_elements(panels.n, panels.k, panels.batches * panels.blocks, lanes_of(builder)), G * H);
}

void run_backward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) {
    const Spec& spec = builder.spec();
    cpu::LoopWork work{};
    work.block_units = heads_of_block(builder) * spec.head_units();
    work.blocks = spec.H / work.block_units;
    if (spec.recurs()) pack_transposed(builder, inputs, work, views);
    loop(builder, "time loop back", "backward", views, 0, spec.piece_steps != 0, work);
}

}  // namespace

// Returns no time, because the CPU has no other strategy to compare with.
std::optional<CostEstimate> NativeProducts::estimate(const Spec& /*spec*/, const Profile& /*profile*/,
                                                     const Costs& /*costs*/, const Parameters& /*wanted*/) const {
    return CostEstimate{};
}

void NativeProducts::product(PlanBuilder& builder, const std::string& label, const Product& p,
                             bool /*independent*/) const {
    const auto row = [](const Matrix& matrix) { return matrix.columns ? 1 : matrix.ld; };
    const auto column = [](const Matrix& matrix) { return matrix.columns ? matrix.ld : 1; };
    cpu::ProductWork work{};
    work.a = builder.at(p.a.buffer, p.a.offset);
    work.b = builder.at(p.b.buffer, p.b.offset);
    work.c = builder.at(p.c.buffer, p.c.offset);
    const bool in_rows = !p.a.columns && p.a.batch == p.k && p.c.batch == p.n;
    const bool has_narrow_heads =
        in_rows && p.batches > 2 && p.n < 2 * lanes_of(builder) && p.k <= cpu::kNarrowDepth && p.whole_m == 0;
    if (p.whole_m != 0)
        work.packed = builder.at(panels_of_parts(builder, label, p, row(p.b), column(p.b)), 0);
    else
        work.packed = builder.at(
            builder.scratch(label + ": panels", (has_narrow_heads ? p.sets : 1) *
                                                    cpu::product_elements(has_narrow_heads ? p.batches * p.n : p.n, p.k,
                                                                          lanes_of(builder))),
            0);
    work.is_packed = p.whole_m != 0;
    work.narrow_heads = has_narrow_heads;
    work.a_m = row(p.a);
    work.a_k = column(p.a);
    work.a_batch = p.a.batch;
    work.b_n = row(p.b);
    work.b_k = column(p.b);
    work.b_batch = p.b.batch;
    work.c_m = p.c.ld;
    work.c_batch = p.c.batch;
    work.m = p.m;
    work.n = p.n;
    work.k = p.k;
    work.batches = p.batches;
    work.a_set = p.a.set;
    work.b_set = p.b.set;
    work.c_set = p.c.set;
    work.sets = p.sets;
    work.live = live_rows(builder);
    if (p.a.sequence) work.of_live = live_work(builder, p.a.buffer, p.b.buffer, p.c.buffer, p.a.columns);
    builder.add(Dispatch{label, builder.kernel("product", {}), {}, make_block(work)});
}

void NativeProducts::row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum,
                             bool /*independent*/) const {
    cpu::SumWork work{};
    work.in = builder.at(sum.in.buffer, sum.in.offset);
    work.live = live_rows(builder);
    if (sum.sequence)
        work.of_live = live_work(builder, sum.in.buffer, sum.factor ? sum.factor->buffer : sum.in.buffer, 0, true);
    work.out = builder.at(sum.out, sum.out_offset);
    work.in_row = sum.in.row;
    work.in_direction = sum.in.direction;
    work.in_gate = sum.in.gate;
    if (sum.factor) {
        work.factor = builder.at(sum.factor->buffer, sum.factor->offset);
        work.factor_row = sum.factor->row;
        work.factor_direction = sum.factor->direction;
        work.factor_gate = sum.factor->gate;
        work.has_factor = 1;
    }
    work.rows = sum.rows;
    work.directions = sum.directions;
    work.gates = sum.gates;
    work.width = sum.width;
    builder.add(Dispatch{label, builder.kernel("sum_rows", {}), {}, make_block(work)});
}

void NativeProducts::convert(PlanBuilder& builder, const std::string& label, const Conversion& conversion,
                             bool /*independent*/) const {
    cpu::ConvertWork work{};
    work.in = builder.at(conversion.from, conversion.offset);
    work.out = builder.at(conversion.to, conversion.offset);
    work.count = conversion.elements;
    work.bfloat = builder.spec().dtype == Dtype::bfloat16;
    work.narrow = conversion.narrow;
    const char* const kernel = conversion.from_bool ? "factors" : "convert";
    builder.add(Dispatch{label, builder.kernel(kernel, {}), {}, make_block(work)});
}

void NativeProducts::last_rows(PlanBuilder& builder, const std::string& label, const LastRows& rows,
                               bool /*independent*/) const {
    const Spec& spec = builder.spec();
    cpu::LastRowsWork work{};
    work.in = builder.at(rows.sequence, 0);
    work.initial = builder.at(rows.initial, 0);
    work.out = builder.at(rows.out, 0);
    work.lengths = reference_to(rows.lengths, 0);
    work.live = live_rows(builder);
    work.T = spec.T;
    work.N = spec.N;
    work.width = rows.width;
    work.directions = spec.D();
    const StateStrides of_state = state_strides(spec, rows.width);
    work.state_row = of_state.row;
    work.state_direction = of_state.direction;
    work.has_lengths = rows.lengths != PlanBuilder::kZeros;
    work.has_initial = rows.initial != PlanBuilder::kZeros;
    work.packed = builder.is_packed(rows.sequence);
    builder.add(Dispatch{label, builder.kernel("last_rows", {}), {}, make_block(work)});
}

void NativeProducts::combine(PlanBuilder& builder, const std::string& label, const Combination& combination,
                             bool /*independent*/) const {
    cpu::CombineWork work{};
    work.a = builder.at(combination.a, combination.offset);
    work.b = builder.at(combination.b, combination.offset);
    work.out = builder.at(combination.out, combination.offset);
    work.count = combination.elements;
    work.limit = combination.limit;
    work.period = combination.period;
    work.adds = combination.operation == Combination::add;
    builder.add(Dispatch{label, builder.kernel("combine", {}), {}, make_block(work)});
}

void NativeProducts::copy_rows(PlanBuilder& builder, const std::string& label, const RowCopy& copy,
                               bool /*independent*/) const {
    cpu::CopyRowsWork work{};
    work.in = builder.at(copy.from.buffer, copy.from.offset);
    work.out = builder.at(copy.to.buffer, copy.to.offset);
    work.in_row = copy.from.row;
    work.out_row = copy.to.row;
    work.rows = copy.rows;
    work.width = copy.width;
    builder.add(Dispatch{label, builder.kernel("copy_rows", {}), {}, make_block(work)});
}

std::optional<CostEstimate> NativeLoop::estimate(const Spec& spec, const Profile& /*profile*/, const Costs& /*costs*/,
                                                 const Parameters& /*wanted*/) const {
    if (spec.piece_steps == 0) return CostEstimate{};
    // Between two layers, numbers of a 16-bit type would have to be converted piece by piece. A gradient call with
    // lengths would need the live rows of each piece for its product.
    const bool has_parts = spec.gradients && spec.has(Argument::input_weight);
    if (is_half(spec.dtype) || (has_parts && (spec.has(Argument::lengths) || spec.G() * spec.H > cpu::kPackedDepth)))
        return std::nullopt;
    return CostEstimate{};
}

void NativeLoop::recompute(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views) const {
    order_rows(builder, inputs);
    const Spec& spec = builder.spec();
    if (recomputes(spec)) loop(builder, "recompute", "recompute", views, weighed_cells(spec), false);
}

void NativeLoop::reset_gradients(PlanBuilder& builder, const StepBlock& views, std::uint32_t wanted) const {
    loop(builder, "gradients of resets", "reset_gradients", views, wanted, false);
}

void NativeLoop::run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    if (builder.spec().gradients)
        run_backward(builder, inputs, views);
    else
        run_forward(builder, inputs, views);
}

}  // namespace vkrnn
