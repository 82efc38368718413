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

// A weight's matrices B(n, k) as panels, with strides in elements.
struct Panels {
    std::int64_t n, k, batches;
    std::int64_t in_n, in_k, in_batch;
};

// Adds the step that packs an argument, and returns the buffer with its panels. An array keeps its panels from call to
// call. `optional`: see Prepacking.
std::size_t pack(PlanBuilder& builder, const std::string& label, std::size_t from, const Panels& panels,
                 bool optional = false) {
    const std::int64_t lanes = lanes_of(builder);
    const std::size_t buffer = builder.prepacked(
        label, cpu::panel_elements(panels.n, panels.k, panels.batches, lanes), from,
        {lanes, panels.n, panels.k, panels.batches, panels.in_n, panels.in_k, panels.in_batch}, optional);
    cpu::PackWork work{};
    work.in = builder.at(from, 0);
    work.out = builder.at(buffer, 0);
    work.in_n = panels.in_n;
    work.in_k = panels.in_k;
    work.in_batch = panels.in_batch;
    work.n = panels.n;
    work.k = panels.k;
    work.batches = panels.batches;
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

void loop(PlanBuilder& builder, const std::string& label, const std::string& cell_kernel, const StepBlock& block,
          std::uint32_t keep, bool is_lane, cpu::LoopWork work = {}) {
    const Spec& spec = builder.spec();
    work.params = block.params();
    work.adds_bias = spec.has(Argument::bias);
    work.has_initial = spec.has(Argument::init_state);
    work.two_phases = spec.two_phases();
    work.directions = static_cast<std::uint32_t>(spec.D());
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
    const std::int64_t H = spec.H, I = spec.I, G = spec.G(), D = spec.D(), lanes = lanes_of(builder);
    // A single step of few rows reads each weight about once, so writing panels would not pay off.
    const bool optional = spec.T == 1 && spec.N <= kFewRows && !is_half(spec.dtype);
    const std::size_t weights = pack(builder, "pack recurrent_weight", inputs[Argument::recurrent_weight],
                                     {H, H, D * G, H, 1, H * H}, optional);
    views.weights(weights, 1, cpu::panel_elements(H, H, G, lanes), H);
    cpu::LoopWork work{};
    for (std::int64_t d = 0; d < D; ++d)
        work.weight_rows[d] = builder.at(inputs[Argument::recurrent_weight], d * G * H * H);
    if (spec.has(Argument::input_weight)) {
        const std::size_t panels =
            pack(builder, "pack input_weight", inputs[Argument::input_weight], {H, I, D * G, I, 1, H * I}, optional);
        for (std::int64_t d = 0; d < D; ++d) {
            work.input_weights[d] = builder.at(panels, d * cpu::panel_elements(H, I, G, lanes));
            work.input_weight_rows[d] = builder.at(inputs[Argument::input_weight], d * G * H * I);
        }
        work.features = I;
        views.features(abi::kProjected, inputs[Argument::source], I);
        builder.count_flops(2.0 * static_cast<double>(spec.rows()) * static_cast<double>(D * G * H * I));
    }
    order_rows(builder, inputs);
    loop(builder, "time loop", "forward", views, keeps_training_state(spec), spec.piece_steps != 0, work);
}

void run_backward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) {
    const std::int64_t H = builder.spec().H, G = builder.spec().G(), D = builder.spec().D();
    const std::size_t weights =
        pack(builder, "pack recurrent_weight", inputs[Argument::recurrent_weight], {H, G * H, D, 1, H, G * H * H});
    views.weights(weights, 1, cpu::panel_elements(H, G * H, 1, lanes_of(builder)), G * H);
    loop(builder, "time loop back", "backward", views, 0, builder.spec().piece_steps != 0);
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
    if (p.whole_m != 0)
        work.packed = builder.at(panels_of_parts(builder, label, p, row(p.b), column(p.b)), 0);
    else
        work.packed =
            builder.at(builder.scratch(label + ": panels", cpu::product_elements(p.n, p.k, lanes_of(builder))), 0);
    work.is_packed = p.whole_m != 0;
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
    work.live = live_rows(builder);
    if (p.a.sequence) work.of_live = live_work(builder, p.a.buffer, p.b.buffer, p.c.buffer, p.a.columns);
    builder.add(Dispatch{label, builder.kernel("product", {}), {}, make_block(work)});
}

void NativeProducts::row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum,
                             bool /*independent*/) const {
    cpu::SumWork work{};
    work.in = builder.at(sum.in.buffer, sum.in.offset);
    work.live = live_rows(builder);
    work.of_live = live_work(builder, sum.in.buffer, sum.in.buffer, 0, true);
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
    builder.add(Dispatch{label, builder.kernel("convert", {}), {}, make_block(work)});
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
    loop(builder, "recompute", "recompute", views, weighed_cells(builder.spec()), false);
}

void NativeLoop::run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    if (builder.spec().gradients)
        run_backward(builder, inputs, views);
    else
        run_forward(builder, inputs, views);
}

}  // namespace vkrnn
