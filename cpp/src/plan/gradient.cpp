// Makes gradient plans, which have three parts. First, the operands of the forward products are recomputed for all
// steps at once. Then the loop runs backwards over the steps and stores the gates' deltas. Finally, each gradient is
// one batched product of the deltas, or one sum of them, over all steps.
#include "gradient.h"

#include "cell_tensors.h"
#include "head_products.h"

namespace vkrnn {

namespace {

class GradientPlan {
public:
    GradientPlan(const Spec& spec, const Profile& profile, const Chosen& chosen)
        : builder_(spec, profile, chosen),
          loop_(chosen.loop),
          spec_(builder_.spec()),
          cell_(spec_.cell()),
          inputs_(builder_),
          narrows_operands_(builder_.accesses_16bit() && chosen.products.narrows_operands(spec_.dtype)) {}

    Plan make() {
        make_results();
        make_buffers();
        builder_.beside_start_of_loop([&] { prepare(); });
        run_back();
        if (spec_.returns_reset_gradients()) reset_gradients();
        if (has(Argument::leak)) leak_gradient();
        // The sums come first, so that blocks of deltas for the products can replace the deltas.
        builder_.beside([&] { vector_gradients(); }, [&] { weight_gradients(); });
        split_initial_cells();
        return builder_.finish();
    }

private:
    [[nodiscard]] bool has(Argument argument) const { return spec_.has(argument); }
    [[nodiscard]] std::size_t result(Argument argument) const { return results_[static_cast<std::size_t>(argument)]; }

    // Later steps of the plan read some results: gradients of initial states, which the loop carries, that of a bias of
    // which there is a copy, and deltas that are the gradient of the source. They are computed in float32 and rounded
    // at the end, except for deltas that the loop may store in a 16-bit type.
    void make_results() {
        for (const Argument argument : gradient_order_of(spec_)) {
            const bool is_read = argument == Argument::init_state || (argument == Argument::init_cell && !joins_) ||
                                 (argument == Argument::bias && has(Argument::recurrent_bias)) ||
                                 (argument == Argument::source && !has(Argument::input_weight) && !narrows_deltas_);
            results_[static_cast<std::size_t>(argument)] =
                is_read ? builder_.read_result(argument) : builder_.result(argument);
        }
    }

    void make_buffers() {
        // Without an input weight, the deltas are the gradient of the source.
        delta_ = has(Argument::input_weight) ? sequence("delta", G, narrows_deltas_) : result(Argument::source);
        recurrent_delta_ =
            scales_product_ ? sequence("recurrent delta", only_candidate_ ? 1 : G, narrows_deltas_) : delta_;
        if (recomputes(spec_)) operand_ = sequence("operand", spec_.mask_slots(), narrows_operand_);
        if (phases_) scaled_operand_ = sequence("scaled operand", 1, narrows_operands_);
        if (cells_ > 0) previous_cell_ = sequence("previous cell", cells_);
        if (multiplies_candidate_) product_ = sequence("candidate product", 1);
        if (spec_.returns_reset_gradients()) {
            reset_up_ = sequence("gradient of reset states", 1);
            if (C > 0) reset_up_cell_ = sequence("gradient of reset cells", C);
        }
        if (has(Argument::leak)) blend_up_ = sequence("gradient of blends", 1);
        carry_hidden_ =
            has(Argument::init_state) ? result(Argument::init_state) : builder_.scratch("carried state", N * D * H);
        if (C > 0)
            carry_cell_ = has(Argument::init_cell) && !joins_ ? result(Argument::init_cell)
                                                              : builder_.scratch("carried cell", N * D * C * H);
        join_cells_above();
    }

    // Sets the buffers of the cell states and of their upstream gradients.
    void join_cells_above() {
        cells_forward_ = inputs_[Argument::cell_output_fwd];
        (spec_.has_largest(Argument::cell_gradient) ? upstream_cells_ : last_cells_) = inputs_[Argument::cell_gradient];
        if (!joins_) return;
        std::vector<std::size_t> forward, last, each;
        bool has_last = false;
        for (const StateTensors& state : spec_.cell_tensors()) {
            const std::size_t gradient = inputs_[state.gradient];
            const bool is_each = spec_.has_largest(state.gradient);
            forward.push_back(inputs_[state.forward]);
            each.push_back(is_each ? gradient : PlanBuilder::kZeros);
            last.push_back(is_each ? PlanBuilder::kZeros : gradient);
            has_last = has_last || last.back() != PlanBuilder::kZeros;
        }
        cells_forward_ = builder_.scratch_sequence("cells", D * C * H, false);
        join_cells(builder_, "join cells", forward, cells_forward_, rows_);
        if (has_last) {
            last_cells_ = builder_.scratch("gradient of last cells", N * D * C * H);
            join_cells(builder_, "join gradients of last cells", last, last_cells_, N);
        }
        if (has_each_cell(spec_)) {
            upstream_cells_ = builder_.scratch_sequence("gradient of cells", D * C * H, false);
            join_cells(builder_, "join gradients of cells", each, upstream_cells_, rows_);
        }
    }

    void split_initial_cells() {
        if (!joins_) return;
        std::size_t number = 0;
        for (const StateTensors& state : spec_.cell_tensors()) {
            const std::size_t cell = number++;
            if (has(state.initial))
                builder_.copy_rows("gradient of " + std::string(name_of(state.initial)),
                                   split_cell(spec_, carry_cell_, cell, result(state.initial), N), true);
        }
    }

    // Adds a scratch sequence with `slots` slots for each unit, in the call's 16-bit type if `narrow`.
    std::size_t sequence(std::string name, std::int64_t slots, bool narrow = false) {
        if (narrow) return builder_.scratch_16bit(std::move(name), rows_ * D * slots * H);
        return builder_.scratch_sequence(std::move(name), D * slots * H, loop_.skips_ended());
    }

    // Returns the views of everything that a step reads and writes, except the weights.
    StepBlock step_block() const {
        StepBlock block(builder_);
        inputs_.set(block);
        if (has(Argument::source_gradient))
            block.sequence(abi::kUpstream, inputs_[Argument::source_gradient], 1, Order::output);
        block.sequence(abi::kTrainingState, inputs_[Argument::z_state], G, Order::output);
        if (has(Argument::output_fwd)) block.sequence(abi::kHidden, inputs_[Argument::output_fwd], 1, Order::output);
        if (C > 0) block.sequence(abi::kCell, cells_forward_, C, Order::output);
        if (C > 0 && inputs_.initial_cells() == PlanBuilder::kZeros) block.type_like(abi::kInitCell, cells_forward_);
        if (has(Argument::state_gradient)) block.state(abi::kLastHidden, inputs_[Argument::state_gradient]);
        if (upstream_cells_ != PlanBuilder::kZeros)
            block.sequence(abi::kUpstreamCell, upstream_cells_, C, Order::output);
        if (last_cells_ != PlanBuilder::kZeros) block.state(abi::kLastCell, last_cells_, C);
        block.sequence(abi::kDelta, delta_, G, Order::source);
        block.sequence(abi::kRecurrentDelta, recurrent_delta_, only_candidate_ ? 1 : G, Order::source);
        if (only_candidate_) block.share_slots(abi::kRecurrentDelta);  // the candidate's is stored last
        if (spec_.returns_reset_gradients()) {
            block.sequence(abi::kResetUp, reset_up_, 1, Order::output);
            if (C > 0) block.sequence(abi::kResetUpCell, reset_up_cell_, C, Order::output);
        }
        if (has(Argument::leak)) block.sequence(abi::kBlendUp, blend_up_, 1, Order::output);
        block.state(abi::kCarryHidden, carry_hidden_);
        if (C > 0) block.state(abi::kCarryCell, carry_cell_, C);
        if (recomputes(spec_)) block.sequence(abi::kOperand, operand_, spec_.mask_slots(), Order::source);
        if (!spec_.masks_gates()) block.share_slots(abi::kOperand);
        if (phases_) block.sequence(abi::kScaledOperand, scaled_operand_, 1, Order::source);
        if (cells_ > 0) block.sequence(abi::kPreviousCell, previous_cell_, cells_, Order::source);
        if (multiplies_candidate_) block.sequence(abi::kProduct, product_, 1, Order::source);
        return block;
    }

    void prepare() {
        loop_.recompute(builder_, inputs_, step_block());
        if (!multiplies_candidate_) return;
        RecurrentProduct q{operand_, inputs_[Argument::recurrent_weight], product_};
        q.slot = candidate_;
        q.slots = q.gates_slots = 1;
        q.directions = D;
        q.operand_slots = spec_.mask_slots();
        add_recurrent_product(builder_, "candidate product", q);
    }

    void run_back() {
        builder_.count_flops(loop_flops(spec_));
        loop_.run(builder_, inputs_, step_block());
    }

    // Clears a sequence of which the steps do not write all rows: not those past the lengths, and not row 0 in the
    // backward direction.
    void clear_rows(std::size_t sequence) {
        if (D > 1 || has(Argument::lengths)) builder_.clear(sequence);
    }

    void reset_gradients() {
        StepBlock block = step_block();
        std::uint32_t wanted = 0;
        const auto want = [&](abi::uint view, std::size_t out, bool of_steps) {
            wanted |= 1U << (view - abi::kResetGradient);
            if (of_steps) clear_rows(out);
            block.reset_state(view, out, of_steps);
        };
        const bool sums = has(Argument::reset) && !spec_.bool_reset && !spec_.has_largest(Argument::reset);
        const std::size_t factors = sums ? builder_.scratch("gradients of factors", D * H * rows_) : 0;
        if (!spec_.bool_reset) want(abi::kResetGradient, sums ? factors : result(Argument::reset), true);
        if (sums) block.columns(abi::kResetGradient, factors);
        if (has(Argument::reset_state))
            want(abi::kResetStateGradient, result(Argument::reset_state), spec_.has_largest(Argument::reset_state));
        if (has(Argument::reset_cell))
            want(abi::kResetCellGradient, result(Argument::reset_cell), spec_.has_largest(Argument::reset_cell));
        loop_.reset_gradients(builder_, block, wanted);
        if (!sums) return;
        RowSum sum{D * H, 1, 1, rows_, {factors, 0, rows_}, {}, result(Argument::reset), 0};
        sum.sequence = false;
        builder_.row_sum("gradient of reset", sum);
    }

    void leak_gradient() {
        const std::size_t out = result(Argument::leak);
        const bool is_one = !spec_.has_largest(Argument::leak);
        const std::size_t of_units = is_one ? builder_.scratch("gradients of the units' leak", D * H) : out;
        builder_.row_sum("gradient of leak", RowSum{rows_, D, 1, H, {blend_up_, 0, D * H, H, 0}, {}, of_units, 0});
        if (!is_one) return;
        RowSum sum{D * H, 1, 1, 1, {of_units, 0, 1, 0, 0}, {}, out, 0};
        sum.sequence = false;
        builder_.row_sum("gradient of leak", sum);
    }

    void weight_gradients() {
        if (has(Argument::input_weight)) {
            add_source_gradient(builder_, {result(Argument::source), inputs_[Argument::input_weight], delta_},
                                has(Argument::bias));
            add_input_weight_gradient(builder_, {inputs_[Argument::source], result(Argument::input_weight), delta_});
        }
        if (!spec_.recurs()) return;
        if (only_candidate_) {
            recurrent_gradient({operand_, 0, delta_, 0, candidate_, 0, G, 0, D});
            return recurrent_gradient({operand_, 0, recurrent_delta_, candidate_, 1, 0, 1, 0, D});
        }
        if (!phases_) return recurrent_gradient({operand_, 0, recurrent_delta_, 0, G, 0, G, 0, D});
        // Forward, the candidate's weights multiplied h * m * r and the others h * m (m: mask, r: reset gate).
        for (std::int64_t d = 0; d < D; ++d) {
            recurrent_gradient({operand_, 0, delta_, 0, candidate_, 0, G, d, 1});
            recurrent_gradient({scaled_operand_, 0, delta_, candidate_, 1, candidate_, G, d, 1});
        }
    }

    // Adds the gradient of some slots of the weights.
    void recurrent_gradient(RecurrentProduct of) {
        if (of.operand == operand_) of.operand_slots = spec_.mask_slots();
        of.weight = result(Argument::recurrent_weight);
        add_recurrent_gradient(builder_, of, has(Argument::input_weight) || of.slot + of.direction > 0);
    }

    void vector_gradients() {
        if (has(Argument::bias)) {
            RowSum sum{rows_, D, G, H, {delta_, 0, D * G * H, G * H, H}, {}, result(Argument::bias), 0};
            builder_.row_sum("gradient of bias", sum, true);
        }
        if (has(Argument::recurrent_bias)) {  // the same, except for a part that is written below
            Combination copy{result(Argument::bias), PlanBuilder::kZeros, result(Argument::recurrent_bias), D * G * H};
            copy.limit_to(0, copy.elements);
            builder_.combine("gradient of recurrent_bias", copy, true);
        }
        const Vectors* vectors = spec_.vectors();
        if (vectors == nullptr) return;
        const bool is_part = spec_.vector_in_bias();
        const std::size_t out = result(is_part ? Argument::recurrent_bias : vectors->argument);
        const std::string label = "gradient of " + std::string(name_of(vectors->argument));
        if (cells_ == 1) {
            weighed_sum(label, {delta_, 0, D * G * H, G * H, H}, {previous_cell_, 0, D * H, H, 0}, G, D, out, 0);
        } else if (cells_ == 2) {
            // The last gate's vector multiplied the new cell state, the others the previous one.
            for (std::int64_t d = 0; d < D; ++d) {
                const RowSum::Term delta{delta_, d * G * H, D * G * H, 0, H};
                const RowSum::Term cell{previous_cell_, 2 * d * H, 2 * D * H, 0, 0};
                weighed_sum(label, delta, cell, G - 1, 1, out, d * G * H);
                weighed_sum(label, shifted(delta, (G - 1) * H), shifted(cell, H), 1, 1, out, (d * G + G - 1) * H);
            }
        } else if (scales_product_) {
            const std::int64_t slots = only_candidate_ ? 1 : G;
            RowSum sum{rows_, D, 1, H, {}, {}, out, 0};
            sum.in = {recurrent_delta_, (slots - 1) * H, D * slots * H, slots * H, 0};
            if (!is_part) return builder_.row_sum(label, sum, true);
            sum.directions = 1;
            for (std::int64_t d = 0; d < D; ++d) {
                sum.out_offset = (d * G + candidate_) * H;
                builder_.row_sum(label, sum, true);
                sum.in.offset += sum.in.direction;
            }
        } else {
            builder_.clear(out);  // the cell does not use the vector, so its gradient is zero
        }
    }

    static RowSum::Term shifted(RowSum::Term term, std::int64_t offset) {
        term.offset += offset;
        return term;
    }

    void weighed_sum(const std::string& label, const RowSum::Term& deltas, const RowSum::Term& cells,
                     std::int64_t gates, std::int64_t directions, std::size_t out, std::int64_t out_offset) {
        RowSum sum{rows_, directions, gates, H, deltas, {}, out, out_offset};
        sum.factor = cells;
        builder_.row_sum(label, sum, true);
    }

    PlanBuilder builder_;
    const LoopStrategy& loop_;
    const Spec& spec_;
    const Cell& cell_;
    Inputs inputs_;
    std::array<std::size_t, kArguments> results_{};

    const std::int64_t rows_ = spec_.rows(), N = spec_.N, H = spec_.H, D = spec_.D(), G = spec_.G(), C = spec_.C();
    const bool phases_ = spec_.two_phases(), joins_ = has_cell_tensors(spec_);
    const bool scales_product_ = spec_.scales_product(), multiplies_candidate_ = scales_product_ && spec_.recurs();
    const DeltaReads reads_ = loop_.delta_reads(builder_);
    // Whether only the candidate has recurrent deltas of its own. That saves most of a buffer, and costs one more
    // product. Float32 calls need about as much memory as cuDNN without it.
    const bool only_candidate_ = scales_product_ && builder_.accesses_16bit() && reads_ != DeltaReads::by_row;
    // Which operands of products may be in the call's 16-bit type. `narrows_operands_`: those that the loop does not
    // read. `narrows_deltas_`: the deltas. `narrows_operand_`: the operand of the recurrent products. The last two stay
    // in float32 if a step has two phases, because the second phase computes with them. But without a mask, and if the
    // cell's gradients read h, the operand of the recurrent products is h itself, in the type of the arguments.
    const bool narrows_operands_;
    const bool narrows_deltas_ = narrows_operands_ && !phases_ && reads_ == DeltaReads::none;
    const bool narrows_operand_ =
        (narrows_operands_ && !phases_) ||
        (builder_.is_16bit(inputs_[Argument::output_fwd]) && !has(Argument::mask) && !has(Argument::reset));
    const std::int64_t cells_ = weighed_cells(spec_);
    const std::int64_t candidate_ = G - 1;  // slot of the candidate

    std::size_t delta_ = 0, recurrent_delta_ = 0, operand_ = 0, scaled_operand_ = 0, previous_cell_ = 0;
    std::size_t product_ = 0, carry_hidden_ = 0, carry_cell_ = 0, reset_up_ = 0, reset_up_cell_ = 0;
    std::size_t blend_up_ = 0;
    std::size_t cells_forward_ = 0, last_cells_ = PlanBuilder::kZeros, upstream_cells_ = PlanBuilder::kZeros;
};

}  // namespace

Plan make_gradient_plan(const Spec& spec, const Profile& profile, const Chosen& chosen) {
    return GradientPlan(spec, profile, chosen).make();
}

}  // namespace vkrnn
