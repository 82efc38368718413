#include "broadcast_loop.h"

#include <algorithm>

#include "cell_step.h"
#include "slab_products.h"

namespace vkrnn {

namespace {

void append(std::vector<Dispatch>& to, std::vector<Dispatch> more) {
    std::move(more.begin(), more.end(), std::back_inserter(to));
}

void add_all(PlanBuilder& builder, std::vector<Dispatch> dispatches) {
    for (Dispatch& dispatch : dispatches) builder.add(std::move(dispatch));
}

std::size_t zero_state(PlanBuilder& builder) {
    const Spec& spec = builder.spec();
    const std::size_t zeros = builder.scratch("zero state", spec.N * spec.D() * spec.H);
    builder.clear(zeros);
    return zeros;
}

// The recurrent product of each step: by the cell's own kernel, or where its sums find no room there, by a kernel
// before it that leaves them in slabs.
class RecurrentProduct {
public:
    // Of `slots` matrices with rows of the operand, a sequence of [T, N, D * operand_slots * H]; step k multiplies what
    // stands at step k + lag.
    struct Operand {
        std::size_t buffer;
        std::int64_t slots;
        Order order;
        std::int32_t lag;
    };

    RecurrentProduct(PlanBuilder& builder, std::size_t weights, const Operand& operand)
        : builder_(builder), spec_(builder.spec()), operand_(operand), fused_(tile_of(builder)) {
        const std::int64_t H = spec_.H, gates = spec_.G() * H;
        const bool transposed = spec_.gradients;
        n_ = transposed ? H : gates;
        k_ = transposed ? gates : H;
        if (!fused_) {
            slabs_.emplace(builder, weights, SlabProducts::Shape{0, spec_.G(), n_, k_});
            return;
        }
        for (std::int64_t d = 0; d < spec_.D(); ++d)
            packed_[static_cast<std::size_t>(d)] = pack_slots(
                builder, {weights, d * gates * H, H * H, transposed ? 1 : H, transposed ? H : 1}, n_ / H, k_, *fused_);
    }

    // The tile of the cell's kernel where that forms the product.
    static std::optional<StepTile> tile_of(const PlanBuilder& builder) {
        const Spec& spec = builder.spec();
        return fused_tile(builder, spec.gradients ? 1 : spec.G(), spec.gradients ? spec.G() * spec.H : spec.H);
    }

    // Tells the step where the product, or what goes into it, is; the options of a step that has one.
    [[nodiscard]] CellStep::Options give(CellStep& step) const {
        if (slabs_) {
            step.slabs(*slabs_);
            return {unfused_tile(builder_), slabs_->slabs()};
        }
        for (std::int64_t d = 0; d < spec_.D(); ++d)
            step.weights(d, packed_[static_cast<std::size_t>(d)], n_ / spec_.H * k_);
        return {*fused_, 0};
    }

    // What has to come before the step; nothing, if it forms the product itself.
    [[nodiscard]] std::vector<Dispatch> dispatches(const std::string& label, std::int64_t direction,
                                                   std::int64_t step) const {
        if (!slabs_) return {};
        const std::int64_t row = spec_.D() * operand_.slots * spec_.H;
        const RowOrder rows = row_order(spec_, operand_.order, direction);
        const std::int64_t first = rows.first * spec_.N * row + direction * operand_.slots * spec_.H;
        StepProduct product = slabs_->product(direction, builder_.at(operand_.buffer, first), row);
        product.a_step = rows.increment * spec_.N * row;
        product.steps = spec_.T;
        product.step = static_cast<std::int32_t>(step);
        product.lag = operand_.lag;
        return step_product(builder_, label, product);
    }
    // The same with a state of [N, D * H] in place of the sequence.
    [[nodiscard]] std::vector<Dispatch> of_state(const std::string& label, std::size_t state,
                                                 std::int64_t direction) const {
        if (!slabs_) return {};
        return step_product(builder_, label,
                            slabs_->product(direction, builder_.at(state, direction * spec_.H), spec_.D() * spec_.H));
    }

private:
    PlanBuilder& builder_;
    const Spec& spec_;
    Operand operand_;
    std::optional<StepTile> fused_;
    std::int64_t n_ = 0, k_ = 0;
    std::array<std::size_t, 2> packed_{};  // of each direction, where it is fused
    std::optional<SlabProducts> slabs_;    // where it is not
};

bool has_vectors(const Spec& spec) { return spec.cell().vectors && spec.has(*spec.cell().vectors); }

bool keeps_hidden(const Spec& spec) { return spec.descriptor.cell == CellKind::gru; }

// h[-1], as step 0's product multiplied it.
void copy_first_operand(PlanBuilder& builder, const Inputs& inputs, std::size_t operand) {
    const Spec& spec = builder.spec();
    const std::int64_t row = spec.D() * spec.H;
    const std::size_t init = spec.has(Argument::init_state) ? inputs[Argument::init_state] : zero_state(builder);
    for (std::int64_t d = 0; d < spec.D(); ++d) {
        const std::int64_t first = row_order(spec, Order::source, d).first * spec.N * row + d * spec.H;
        copy_rows(builder, "first operand", builder.at(init, d * spec.H), builder.at(operand, first), spec.N, spec.H,
                  row);
    }
}

}  // namespace

bool can_broadcast_loop(const PlanBuilder& builder) {
    const Spec& spec = builder.spec();
    if (!builder.broadcasts() || spec.H % (std::int64_t{2} * builder.profile().subgroup_size) != 0 ||
        two_phases(spec) || spec.has(Argument::mask) || spec.has(Argument::lengths))
        return false;
    const std::int64_t gates = spec.G() * spec.H;
    return RecurrentProduct::tile_of(builder) ||
           can_step_product(builder, spec.N, spec.gradients ? spec.H : gates, spec.gradients ? gates : spec.H);
}

void broadcast_forward_loop(PlanBuilder& builder, const Inputs& inputs, const ForwardLoop& loop) {
    const Spec& spec = builder.spec();
    const Cell& cell = spec.cell();
    const RecurrentProduct product(builder, inputs[Argument::recurrent_weight], {loop.hidden, 1, Order::output, -1});
    CellStep step(builder);
    CellStep::Options options = product.give(step);
    options.orders = loop.cell_is_state ? abi::kCellIsState : 0;
    options.keep = loop.training;
    options.results = {{abi::kStepHidden, loop.hidden}};
    if (cell.states > 1 || loop.training)
        options.results.emplace_back(abi::kStepCell, cell.states > 1 ? loop.cell : loop.hidden);
    if (loop.training) options.results.emplace_back(abi::kStepSaved, loop.saved);
    step.sequence(abi::kStepProjected, loop.projected, spec.G(), Order::source);
    step.sequence(abi::kStepHidden, loop.hidden, 1, Order::output);
    if (loop.training) step.sequence(abi::kStepSaved, loop.saved, spec.G(), Order::output);
    if (loop.adds_bias) {
        step.vector(abi::kStepBias, inputs[Argument::bias], spec.G());
        options.reads |= abi::kReadsBias;
    }
    if (has_vectors(spec)) {
        step.vector(abi::kStepVectors, inputs[*cell.vectors], cell.vector_count);
        options.reads |= abi::kReadsVectors;
    }
    const auto cell_at = [&](abi::uint view) {
        if (loop.cell_is_state)
            step.state(view, loop.cell);
        else
            step.sequence(view, loop.cell, 1, Order::output);
    };
    if (cell.states > 1) cell_at(abi::kStepCell);

    // Step 0 starts from other buffers than the steps after it.
    const std::size_t zeros =
        spec.has(Argument::init_state) && (cell.states == 1 || spec.has(Argument::init_cell)) ? 0 : zero_state(builder);
    const std::size_t init = spec.has(Argument::init_state) ? inputs[Argument::init_state] : zeros;
    step.state(abi::kStepPreviousHidden, init);
    step.state(abi::kStepMultiplied, init, CellStep::whole);
    if (cell.states > 1)
        step.state(abi::kStepPreviousCell, spec.has(Argument::init_cell) ? inputs[Argument::init_cell] : zeros);
    CellStep::Options first = options;
    if (!spec.has(Argument::init_state) && (options.slabs > 0 || spec.T == 1)) {
        first.tile = unfused_tile(builder);
        first.slabs = 0;
    }
    for (std::int64_t d = 0; d < spec.D(); ++d) {
        if (spec.has(Argument::init_state))
            add_all(builder, product.of_state("first product", inputs[Argument::init_state], d));
        add_all(builder, step.dispatches("first step", "forward", first, d, 0));
    }
    if (spec.T == 1) return;
    step.sequence(abi::kStepPreviousHidden, loop.hidden, 1, Order::output);
    step.sequence(abi::kStepMultiplied, loop.hidden, 1, Order::output, CellStep::whole);
    if (cell.states > 1) cell_at(abi::kStepPreviousCell);
    Loop steps{spec.T - 1, 1, 1, {}};
    for (std::int64_t d = 0; d < spec.D(); ++d) {
        append(steps.body, product.dispatches("product", d, 1));
        append(steps.body, step.dispatches("step", "forward", options, d, 1));
    }
    builder.add(std::move(steps));
}

void broadcast_backward_loop(PlanBuilder& builder, const Inputs& inputs, const BackwardLoop& loop) {
    const Spec& spec = builder.spec();
    const Cell& cell = spec.cell();
    const bool carries = keeps_hidden(spec);  // h reaches the step before not by the product alone
    const std::int64_t elements = spec.N * spec.D() * spec.H;
    const RecurrentProduct product(builder, inputs[Argument::recurrent_weight],
                                   {loop.recurrent_delta, spec.G(), Order::source, 1});
    CellStep step(builder);
    CellStep::Options options = product.give(step);
    options.reads = carries ? abi::kReadsCarry : 0;
    options.results = {{abi::kStepDelta, loop.delta}};
    if (carries) options.results.emplace_back(abi::kStepRecurrentDelta, loop.recurrent_delta);
    if (carries || cell.states > 1)
        options.results.emplace_back(abi::kStepCarried, carries ? loop.carry_hidden : loop.carry_cell);
    step.sequence(carries ? abi::kStepLaterRecurrentDelta : abi::kStepLaterDelta, loop.recurrent_delta, spec.G(),
                  Order::source, CellStep::whole);
    step.sequence(abi::kStepSaved, inputs[Argument::z_state], spec.G(), Order::output);
    step.sequence(abi::kStepUpstream, inputs[Argument::source_gradient], 1, Order::output);
    step.sequence(abi::kStepDelta, loop.delta, spec.G(), Order::source);
    step.state(abi::kStepCarryHidden, loop.carry_hidden);
    if (has_vectors(spec)) {
        step.vector(abi::kStepVectors, inputs[*cell.vectors], cell.vector_count);
        options.reads |= abi::kReadsVectors;
    }
    if (cell.states > 1) {
        step.sequence(abi::kStepCell, inputs[Argument::cell_output_fwd], 1, Order::output);
        step.state(abi::kStepCarryCell, loop.carry_cell);
        step.state(abi::kStepCarried, loop.carry_cell);
    } else if (carries) {
        step.state(abi::kStepCarried, loop.carry_hidden);
        step.sequence(abi::kStepRecurrentDelta, loop.recurrent_delta, spec.G(), Order::source);
        step.sequence(abi::kStepCandidateProduct, loop.candidate_product, 1, Order::source);
    }
    const auto previous = [&](bool first) {
        const auto set = [&](abi::uint view, Argument sequence, Argument state) {
            if (!first)
                step.sequence(view, inputs[sequence], 1, Order::output);
            else
                step.state(view, spec.has(state) ? inputs[state] : zero_state(builder));
        };
        if (carries) set(abi::kStepPreviousHidden, Argument::output_fwd, Argument::init_state);
        if (cell.states > 1) set(abi::kStepPreviousCell, Argument::cell_output_fwd, Argument::init_cell);
    };

    const auto start = [&](Argument gradient, std::size_t carry) {
        if (spec.has(gradient))
            copy_rows(builder, "last state", builder.at(inputs[gradient], 0), builder.at(carry, 0), 1, elements,
                      elements);
        else
            builder.clear(carry);
    };
    CellStep::Options last = options;  // no later step hands down a product
    last.tile = unfused_tile(builder);
    last.slabs = 0;
    if (carries || spec.has(Argument::state_gradient)) {
        start(Argument::state_gradient, loop.carry_hidden);
        last.reads |= abi::kReadsCarry;
    }
    if (cell.states > 1) start(Argument::cell_gradient, loop.carry_cell);
    if (loop.operand) {
        copy_first_operand(builder, inputs, *loop.operand);
        step.sequence(abi::kStepLeftOperand, *loop.operand, 1, Order::source);
        options.results.emplace_back(abi::kStepLeftOperand, *loop.operand);
        options.reads |= abi::kLeavesOperand;
    }
    previous(spec.T == 1);
    for (std::int64_t d = 0; d < spec.D(); ++d)
        add_all(builder, step.dispatches("last step back", "backward", last, d, spec.T - 1));
    if (spec.T > 2) {
        Loop steps{spec.T - 2, static_cast<std::int32_t>(spec.T - 2), -1, {}};
        for (std::int64_t d = 0; d < spec.D(); ++d) {
            append(steps.body, product.dispatches("product back", d, 1));
            append(steps.body, step.dispatches("step back", "backward", options, d, 1));
        }
        builder.add(std::move(steps));
    }
    if (spec.T == 1) return;
    previous(true);
    for (std::int64_t d = 0; d < spec.D(); ++d) {
        add_all(builder, product.dispatches("product back", d, 0));
        add_all(builder, step.dispatches("first step back", "backward", options, d, 0));
    }
}

bool leaves_operand(const PlanBuilder& builder) {
    return can_broadcast_loop(builder) && !keeps_hidden(builder.spec()) && !has_vectors(builder.spec());
}

bool can_broadcast_replay(const PlanBuilder& builder) {
    return can_broadcast_loop(builder) && keeps_hidden(builder.spec());
}

void broadcast_replay(PlanBuilder& builder, const Inputs& inputs, std::size_t operand) {
    const Spec& spec = builder.spec();
    CellStep step(builder);
    step.sequence(abi::kStepPreviousHidden, inputs[Argument::output_fwd], 1, Order::output);
    step.sequence(abi::kStepOperand, operand, 1, Order::source);
    CellStep::Options options{unfused_tile(builder)};
    options.results = {{abi::kStepOperand, operand}};
    const std::int64_t blocks = (spec.T - 1) / kTable;
    copy_first_operand(builder, inputs, operand);
    Loop several{blocks, 1, static_cast<std::int32_t>(kTable), {}};
    for (std::int64_t d = 0; d < spec.D(); ++d) {
        if (blocks > 0) append(several.body, step.dispatches("replay", "replay", options, d, 1, kTable));
        const std::int64_t done = 1 + blocks * kTable;
        if (done < spec.T) add_all(builder, step.dispatches("replay", "replay", options, d, done, spec.T - done));
    }
    if (blocks > 0) builder.add(std::move(several));
}

}  // namespace vkrnn
