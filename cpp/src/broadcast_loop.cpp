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

// What the recurrent products of the steps multiply: a sequence of [T, N, D * slots * H] in an order, as it stands
// `lag` steps after; or a state of [N, D * slots * H]. From slot `first` on.
struct Operand {
    std::size_t buffer;
    std::int64_t slots = 1, first = 0;
    std::optional<Order> order = {};
    std::int32_t lag = 0;
};

// The recurrent product of a phase of each step: by the cell's own kernel, or where its sums find no room there, by a
// kernel before it that leaves them in slabs.
class RecurrentProduct {
public:
    RecurrentProduct(PlanBuilder& builder, std::size_t weights, const Phase& phase)
        : builder_(builder), spec_(builder.spec()), shape_(shape_of(spec_, phase)), fused_(tile_of(builder, shape_)) {
        if (!fused_) {
            slabs_.emplace(builder, weights, shape_);
            return;
        }
        const std::int64_t H = spec_.H;
        const bool transposed = spec_.gradients;
        for (std::int64_t d = 0; d < spec_.D(); ++d)
            packed_[static_cast<std::size_t>(d)] = pack_slots(
                builder,
                {weights, (d * spec_.G() + phase.first) * H * H, H * H, transposed ? 1 : H, transposed ? H : 1},
                shape_.n / H, shape_.k, *fused_);
    }

    // Whether there can be one.
    static bool possible(const PlanBuilder& builder, const Phase& phase) {
        const ProductShape shape = shape_of(builder.spec(), phase);
        return tile_of(builder, shape) || can_step_product(builder, builder.spec().N, shape.n, shape.k);
    }

    // Tells the step where the product, or what goes into it, is; the options of a step that has one.
    [[nodiscard]] CellStep::Options give(CellStep& step) const {
        if (slabs_) {
            step.slabs(*slabs_);
            return {unfused_tile(builder_), slabs_->slabs()};
        }
        for (std::int64_t d = 0; d < spec_.D(); ++d)
            step.weights(d, packed_[static_cast<std::size_t>(d)], shape_.n / spec_.H * shape_.k);
        return {*fused_, 0};
    }

    // What has to come before the step; nothing, if it forms the product itself.
    [[nodiscard]] std::vector<Dispatch> dispatches(const std::string& label, const Operand& operand,
                                                   std::int64_t direction, std::int64_t step) const {
        if (!slabs_) return {};
        const std::int64_t row = spec_.D() * operand.slots * spec_.H;
        const std::int64_t first = (direction * operand.slots + operand.first) * spec_.H;
        const RowOrder rows = operand.order ? row_order(spec_, *operand.order, direction) : RowOrder{0, 0};
        StepProduct product =
            slabs_->product(direction, builder_.at(operand.buffer, rows.first * spec_.N * row + first), row);
        if (operand.order) {
            product.a_step = rows.increment * spec_.N * row;
            product.steps = spec_.T;
            product.step = static_cast<std::int32_t>(step);
            product.lag = operand.lag;
        }
        return step_product(builder_, label, product);
    }

private:
    // The tile of the cell's kernel where that forms the product.
    static std::optional<StepTile> tile_of(const PlanBuilder& builder, const ProductShape& shape) {
        return fused_tile(builder, shape.n / builder.spec().H, shape.k);
    }

    PlanBuilder& builder_;
    const Spec& spec_;
    ProductShape shape_;
    std::optional<StepTile> fused_;
    std::array<std::size_t, 2> packed_{};  // of each direction, where it is fused
    std::optional<SlabProducts> slabs_;    // where it is not
};

// A phase of the steps.
struct PhaseSteps {
    PhaseSteps(PlanBuilder& builder, const Inputs& inputs, const Phase& which)
        : phase(which),
          product(builder, inputs[Argument::recurrent_weight], phase),
          step(builder),
          options(product.give(step)) {
        options.phase = phase.number;
    }

    Phase phase;
    RecurrentProduct product;
    CellStep step;
    CellStep::Options options;
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
        spec.has(Argument::mask) || spec.has(Argument::lengths))
        return false;
    const std::vector<Phase> phases = phases_of(spec);
    return std::all_of(phases.begin(), phases.end(),
                       [&](const Phase& phase) { return RecurrentProduct::possible(builder, phase); });
}

void broadcast_forward_loop(PlanBuilder& builder, const Inputs& inputs, const ForwardLoop& loop) {
    const Spec& spec = builder.spec();
    const Cell& cell = spec.cell();
    const std::size_t zeros =
        spec.has(Argument::init_state) && (cell.states == 1 || spec.has(Argument::init_cell)) ? 0 : zero_state(builder);
    const std::size_t init = spec.has(Argument::init_state) ? inputs[Argument::init_state] : zeros;
    Loop steps{spec.T - 1, 1, 1, {}};
    for (const Phase& phase : phases_of(spec)) {
        PhaseSteps each(builder, inputs, phase);
        CellStep& step = each.step;
        CellStep::Options& options = each.options;
        const bool leaves = phase.number == 1, second = phase.number == 2;  // the operand of the second
        const bool saved_is_state = (leaves || second) && !loop.training;
        const std::size_t left = leaves ? loop.reset_state : loop.hidden;
        options.keep = loop.training || leaves;
        options.orders = (loop.cell_is_state ? abi::kCellIsState : 0) | (saved_is_state ? abi::kSavedIsState : 0);
        options.results = {{abi::kStepHidden, left}};
        if (cell.states > 1 || options.keep)
            options.results.emplace_back(abi::kStepCell, cell.states > 1 ? loop.cell : left);
        if (options.keep) options.results.emplace_back(abi::kStepSaved, loop.saved);
        const auto either = [&](bool is_state, abi::uint view, std::size_t buffer, std::int64_t slots) {
            if (is_state)
                step.state(view, buffer, slots);
            else
                step.sequence(view, buffer, slots, Order::output);
        };
        step.sequence(abi::kStepProjected, loop.projected, spec.G(), Order::source);
        either(leaves, abi::kStepHidden, left, 1);
        if (options.keep) either(saved_is_state, abi::kStepSaved, loop.saved, spec.G());
        if (second) either(saved_is_state, abi::kStepFirstGates, loop.saved, spec.G());
        if (loop.adds_bias) {
            step.vector(abi::kStepBias, inputs[Argument::bias], spec.G());
            options.reads |= abi::kReadsBias;
        }
        if (has_vectors(spec)) {
            step.vector(abi::kStepVectors, inputs[*cell.vectors], cell.vector_count);
            options.reads |= abi::kReadsVectors;
        }
        if (cell.states > 1) either(loop.cell_is_state, abi::kStepCell, loop.cell, 1);

        // Step 0 starts from other buffers than the steps after it.
        step.state(abi::kStepPreviousHidden, init);
        step.state(abi::kStepMultiplied, second ? loop.reset_state : init, 1, CellStep::whole);
        if (cell.states > 1)
            step.state(abi::kStepPreviousCell, spec.has(Argument::init_cell) ? inputs[Argument::init_cell] : zeros);
        const bool multiplies = second || spec.has(Argument::init_state);
        CellStep::Options first = options;
        if (!multiplies && (options.slabs > 0 || spec.T == 1)) {
            first.tile = unfused_tile(builder);
            first.slabs = 0;
        }
        for (std::int64_t d = 0; d < spec.D(); ++d) {
            if (multiplies)
                add_all(builder, each.product.dispatches("first product", {second ? loop.reset_state : init}, d, 0));
            add_all(builder, step.dispatches("first step", "forward", first, d, 0));
        }
        if (spec.T == 1) continue;
        step.sequence(abi::kStepPreviousHidden, loop.hidden, 1, Order::output);
        if (!second) step.sequence(abi::kStepMultiplied, loop.hidden, 1, Order::output, CellStep::whole);
        if (cell.states > 1) either(loop.cell_is_state, abi::kStepPreviousCell, loop.cell, 1);
        const Operand operand = second ? Operand{loop.reset_state} : Operand{loop.hidden, 1, 0, Order::output, -1};
        for (std::int64_t d = 0; d < spec.D(); ++d) {
            append(steps.body, each.product.dispatches("product", operand, d, 1));
            append(steps.body, step.dispatches("step", "forward", options, d, 1));
        }
    }
    if (spec.T > 1) builder.add(std::move(steps));
}

void broadcast_backward_loop(PlanBuilder& builder, const Inputs& inputs, const BackwardLoop& loop) {
    const Spec& spec = builder.spec();
    const Cell& cell = spec.cell();
    const bool carries = keeps_hidden(spec);  // h reaches the step before not by the product alone
    const std::int64_t elements = spec.N * spec.D() * spec.H;
    std::vector<PhaseSteps> phases;
    for (const Phase& phase : phases_of(spec)) {
        PhaseSteps& each = phases.emplace_back(builder, inputs, phase);
        CellStep& step = each.step;
        CellStep::Options& options = each.options;
        const bool second = phase.number == 2;
        const abi::uint beside = second ? abi::kStepResetOperand : abi::kStepRecurrentDelta;
        const std::size_t left = second ? loop.reset_operand : loop.recurrent_delta;
        options.reads = carries ? abi::kReadsCarry : 0;
        options.results = {{abi::kStepDelta, loop.delta}};
        if (carries) options.results.emplace_back(beside, left);
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
            step.sequence(beside, left, second ? 1 : spec.G(), Order::source);
            if (phase.number == 0) step.sequence(abi::kStepCandidateProduct, loop.candidate_product, 1, Order::source);
        }
    }

    const auto start = [&](Argument gradient, std::size_t carry) {
        if (spec.has(gradient))
            copy_rows(builder, "last state", builder.at(inputs[gradient], 0), builder.at(carry, 0), 1, elements,
                      elements);
        else
            builder.clear(carry);
    };
    const bool carried = carries || spec.has(Argument::state_gradient);
    if (carried) start(Argument::state_gradient, loop.carry_hidden);
    if (cell.states > 1) start(Argument::cell_gradient, loop.carry_cell);
    if (loop.operand) copy_first_operand(builder, inputs, *loop.operand);

    const auto operand = [&](const Phase& phase) {
        return Operand{loop.recurrent_delta, spec.G(), phase.first, Order::source, phase.number == 2 ? 0 : 1};
    };
    std::optional<std::size_t> zeros;
    const auto read_previous = [&](bool first) {
        for (PhaseSteps& each : phases) {
            const auto set = [&](abi::uint view, Argument sequence, Argument state) {
                if (!first) return each.step.sequence(view, inputs[sequence], 1, Order::output);
                if (!spec.has(state) && !zeros) zeros = zero_state(builder);
                each.step.state(view, spec.has(state) ? inputs[state] : *zeros);
            };
            if (carries) set(abi::kStepPreviousHidden, Argument::output_fwd, Argument::init_state);
            if (cell.states > 1) set(abi::kStepPreviousCell, Argument::cell_output_fwd, Argument::init_cell);
        }
    };
    const auto steps_back = [&](const std::string& label, std::int64_t number) {
        std::vector<Dispatch> made;
        for (const PhaseSteps& each : phases) {
            const bool multiplies = number < spec.T - 1 || each.phase.number == 2;  // else no later step hands it down
            CellStep::Options options = each.options;
            if (!multiplies) {
                options.tile = unfused_tile(builder);
                options.slabs = 0;
                if (carried) options.reads |= abi::kReadsCarry;
            }
            for (std::int64_t d = 0; d < spec.D(); ++d) {
                if (multiplies) append(made, each.product.dispatches("product back", operand(each.phase), d, number));
                append(made, each.step.dispatches(label, "backward", options, d, number));
            }
        }
        return made;
    };

    read_previous(spec.T == 1);
    add_all(builder, steps_back("last step back", spec.T - 1));
    if (loop.operand)
        for (PhaseSteps& each : phases) {
            each.step.sequence(abi::kStepLeftOperand, *loop.operand, 1, Order::source);
            each.options.results.emplace_back(abi::kStepLeftOperand, *loop.operand);
            each.options.reads |= abi::kLeavesOperand;
        }
    if (spec.T > 2)
        builder.add(Loop{spec.T - 2, static_cast<std::int32_t>(spec.T - 2), -1, steps_back("step back", 1)});
    if (spec.T == 1) return;
    read_previous(true);
    add_all(builder, steps_back("first step back", 0));
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
