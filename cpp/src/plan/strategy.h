// A strategy is a way to run one part of a call on a device. A call has two parts: the time loop, and the products and
// sums around it. Each strategy is a class in a folder of its own, and is listed under its back end in registry.cpp.
// The rest of planning knows only the interfaces in this file.
#pragma once

#include <optional>
#include <string_view>

#include "inputs.h"
#include "vkrnn/strategy_choice.h"
#include "vkrnn/tuning.h"

namespace vkrnn {

struct Costs;  // see cost_table.h

// A strategy's cost estimate for a call that it can run.
struct CostEstimate {
    double microseconds = 0;     // estimated time of its part of the call; the lowest one wins
    Parameters parameters = {};  // the tuning parameters that it would use
    bool only_if_fixed = false;  // whether the strategy is used only if a caller fixes it
    double ratio = 1;            // of the measured time to this estimate, if it is known: see LaneCosts
};

class Strategy {
public:
    Strategy() = default;
    virtual ~Strategy() = default;
    Strategy(const Strategy&) = delete;
    Strategy& operator=(const Strategy&) = delete;

    // Returns the name by which callers fix the strategy and a plan's text shows it.
    [[nodiscard]] virtual std::string_view name() const = 0;

    // Returns whether a device of its back end can run the strategy at all.
    [[nodiscard]] virtual bool runs_on(const Profile& /*profile*/) const { return true; }

    // Returns all tuning parameters: the values in `wanted`, and defaults for the device for the others. Throws
    // ValueError if the device cannot run a wanted value.
    [[nodiscard]] virtual Parameters parameters(const Profile& /*profile*/, const Parameters& /*wanted*/) const {
        return {};
    }

    // Returns tuning parameters that are worth measuring, besides those that the strategy would choose. The device must
    // be able to run the strategy.
    [[nodiscard]] virtual std::vector<Parameters> variants(const Profile& /*profile*/) const { return {}; }

    // Returns the cost estimate for a call with the wanted tuning parameters, or nothing if the strategy cannot run the
    // call. The device must be able to run the strategy.
    [[nodiscard]] virtual std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile,
                                                               const Costs& costs, const Parameters& wanted) const = 0;
};

// Runs products, sums, conversions and copies. An `independent` step needs nothing that the step before it wrote.
class ProductStrategy : public Strategy {
public:
    // Returns whether plans of calls in this 16-bit type keep operands of products in the type if no other step needs
    // more of their digits. That saves memory, and conversions if products read operands of this type only.
    [[nodiscard]] virtual bool narrows_operands(Dtype /*dtype*/) const { return false; }

    // Returns whether product() takes several sets of batches. Otherwise it is called for each set.
    [[nodiscard]] virtual bool takes_sets() const { return false; }

    // Returns whether the call gains if its products, and what else needs no result of the other, run at the same time.
    // They then share no memory.
    [[nodiscard]] virtual bool runs_beside(const Spec& /*spec*/) const { return false; }

    virtual void product(PlanBuilder& builder, const std::string& label, const Product& product,
                         bool independent) const = 0;
    virtual void row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum, bool independent) const = 0;
    virtual void convert(PlanBuilder& builder, const std::string& label, const Conversion& conversion,
                         bool independent) const = 0;
    virtual void last_rows(PlanBuilder& builder, const std::string& label, const LastRows& rows,
                           bool independent) const = 0;
    virtual void combine(PlanBuilder& builder, const std::string& label, const Combination& combination,
                         bool independent) const = 0;
    virtual void copy_rows(PlanBuilder& builder, const std::string& label, const RowCopy& copy,
                           bool independent) const = 0;
};

// How the steps of a gradient call read deltas of the later step from the plan's buffers.
enum class DeltaReads : std::uint8_t {
    none,
    by_gate,  // the candidate's recurrent deltas from kRecurrentDelta, and those of the other gates from kDelta
    by_row,   // the recurrent deltas of all gates from kRecurrentDelta
};

// Runs the time loop of a forward call or of a gradient call. `views` has everything that a step reads and writes,
// except the weights.
class LoopStrategy : public Strategy {
public:
    // Returns whether the forward loop computes x W^T. Otherwise the plan computes it for all steps before the loop,
    // which reads it as kProjected.
    [[nodiscard]] virtual bool projects() const { return false; }

    // Returns whether loops and products skip the rows past a batch row's length. Scratch sequences then hold live rows
    // only.
    [[nodiscard]] virtual bool skips_ended() const { return false; }

    // Returns what the steps of a gradient call read of the later step's deltas. With none, the plan may store deltas
    // in the call's 16-bit type. With none or by_gate, it may store recurrent deltas of the candidate only, because
    // those of the other gates equal their deltas.
    [[nodiscard]] virtual DeltaReads delta_reads(const PlanBuilder& /*builder*/) const { return DeltaReads::by_row; }

    // For gradient calls: adds steps that recompute the operands of the forward products for all time steps at once.
    // The plan adds steps of its own between these and the loop.
    virtual void recompute(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views) const = 0;

    // Adds the loop over the time steps: forward, or backwards with the gradient of the initial state.
    virtual void run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const = 0;

    // For gradient calls with resets: adds, after the loop, the gradients of the reset's factors and of the states that
    // it starts from, as the bits of abi::kResetGradient and the following views say.
    virtual void reset_gradients(PlanBuilder& builder, const StepBlock& views, std::uint32_t wanted) const = 0;
};

// Return all strategies of a back end.
std::span<const LoopStrategy* const> loop_strategies(Backend backend);
std::span<const ProductStrategy* const> product_strategies(Backend backend);

// The strategies that run a call, with their names and tuning parameters.
struct Chosen {
    const LoopStrategy& loop;
    const ProductStrategy& products;
    StrategyChoice choice;
    double loop_microseconds = 0, products_microseconds = 0;  // estimates
};

// Chooses a strategy for each part: the one that the caller fixed, otherwise the one with the lowest estimated time. If
// the caller fixed nothing, an entry for the call in `tuning` takes precedence. Throws NotImplementedError if what is
// fixed cannot run the call.
Chosen choose_strategies(const Spec& spec, const Profile& profile, const StrategyChoice& fixed, const Tuning& tuning);

}  // namespace vkrnn
