// A strategy is a way to run one part of a call on a device. There are two parts, the time loop and the products and
// sums around it. A strategy for either is a class in a folder of its own and a name in registry.cpp, under its back
// end. The rest of the planning knows only what stands here.
#pragma once

#include <optional>
#include <string_view>

#include "inputs.h"
#include "vkrnn/strategy.h"
#include "vkrnn/tuning.h"

namespace vkrnn {

// A strategy's answer to a call that it can run.
struct Offer {
    double microseconds = 0;  // that it expects its part of the call to take; the least of all offers is taken
    Sizes sizes = {};         // that it would take
};

class Strategy {
public:
    Strategy() = default;
    virtual ~Strategy() = default;
    Strategy(const Strategy&) = delete;
    Strategy& operator=(const Strategy&) = delete;

    // Returns the name by which a caller fixes it and a plan's text shows it.
    [[nodiscard]] virtual std::string_view name() const = 0;

    // Returns whether a device of its back end can run it, for any call.
    [[nodiscard]] virtual bool runs_on(const Profile& /*profile*/) const { return true; }

    // Returns all sizes that a caller can fix: with the value in `wanted` where it has one, else with a value for the
    // device. Throws ValueError where the device cannot run a wanted value.
    [[nodiscard]] virtual Sizes sizes(const Profile& /*profile*/, const Sizes& /*wanted*/) const { return {}; }

    // Returns sizes that are worth a measurement, on a device that it runs on, beside those that it would take.
    [[nodiscard]] virtual std::vector<Sizes> variants(const Profile& /*profile*/) const { return {}; }

    // Returns the offer for a call, with the wanted sizes, on a device that it runs on; nothing where it does not fit.
    [[nodiscard]] virtual std::optional<Offer> offer(const Spec& spec, const Profile& profile,
                                                     const Sizes& wanted) const = 0;
};

// Runs products, sums and conversions. An `independent` one needs nothing that the step before it wrote.
class ProductStrategy : public Strategy {
public:
    virtual void product(PlanBuilder& builder, const std::string& label, const Product& product,
                         bool independent) const = 0;
    virtual void row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum, bool independent) const = 0;
    virtual void convert(PlanBuilder& builder, const std::string& label, const Conversion& conversion,
                         bool independent) const = 0;
};

// The tensors of a backward loop.
struct BackwardPass {
    const Inputs& inputs;
    const StepBlock& views;  // all that a step reads and writes, except the recurrent weight
    std::size_t weight;      // what LoopStrategy::backward_weight returned
};

// Runs the time loop of a forward call and that of its gradients.
class LoopStrategy : public Strategy {
public:
    // Returns whether the forward loop forms x W^T. If not, the plan forms it for all steps before the loop, and the
    // loop reads it as kProjected.
    [[nodiscard]] virtual bool projects() const { return false; }

    // Returns whether loops and products go over live rows alone: those before the ends that the lengths tell. Then
    // scratch sequences hold nothing else.
    [[nodiscard]] virtual bool skips_ended() const { return false; }

    // Adds the forward loop. `views` has all that a step reads and writes, except the weights.
    virtual void forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const = 0;

    // The backward loop is added in three parts, between which the plan adds buffers and steps of its own.

    // Makes a buffer for the recurrent weight in the order that the loop reads it; kNoBuffer where none is needed.
    virtual std::size_t backward_weight(PlanBuilder& /*builder*/) const { return kNoBuffer; }
    // Adds steps that recompute, for all time steps at once, what the forward products multiplied.
    virtual void recompute(PlanBuilder& builder, const BackwardPass& pass) const = 0;
    // Adds the loop back over the time steps, and the gradient of the initial state.
    virtual void backward(PlanBuilder& builder, const BackwardPass& pass) const = 0;
};

// Return all strategies of a back end.
std::span<const LoopStrategy* const> loop_strategies(Backend backend);
std::span<const ProductStrategy* const> product_strategies(Backend backend);

// The strategies that run a call, with their names and sizes.
struct Chosen {
    const LoopStrategy& loop;
    const ProductStrategy& products;
    StrategyChoice choice;
};

// Takes for each part what the caller fixed, else the strategy that expects to be fastest. If the caller fixed nothing,
// what the call was tuned with comes first. Throws NotImplementedError where what is fixed does not fit the call.
Chosen choose_strategies(const Spec& spec, const Profile& profile, const StrategyChoice& fixed, const Tuning& tuning);

}  // namespace vkrnn
