#include "product_loop.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "slab_products.h"

namespace vkrnn {

namespace {

constexpr std::int64_t kFewestUnits = 16;  // less is not worth a kernel of its own
constexpr std::int64_t kPadding = 32;      // of k: blocks of as many divide it
constexpr std::int64_t kMostPadding = 8;   // times as much

// Of a phase's products, with padding; none where the flavour has no such product.
std::optional<ProductShape> padded_shape(const PlanBuilder& builder, const Phase& phase) {
    ProductShape shape = shape_of(builder.spec(), phase);
    shape.n = round_up(shape.n, panel_width(builder));
    shape.k = round_up(shape.k, kPadding);
    for (const std::int64_t most = shape.k + kMostPadding * kPadding; shape.k <= most; shape.k += kPadding)
        if (can_step_product(builder, builder.spec().N, shape.n, shape.k)) return shape;
    return {};
}

// What the products multiply, as [N, D, each], with room for what they read beyond it. That is times zero, in the
// padding of the weights, but must be numbers.
class Operand {
public:
    Operand(PlanBuilder& builder, const std::string& name) : builder_(builder) {
        for (const Phase& phase : phases_of(builder.spec()))
            each_ = std::max(each_, begin(phase) + padded_shape(builder, phase)->k);
        buffer_ = builder.scratch(name, builder.spec().N * builder.spec().D() * each_);
        builder.clear(buffer_);
    }

    void view(StepBlock& block, abi::uint view) const { block.padded_state(view, buffer_, each_); }

    // For all directions.
    [[nodiscard]] std::vector<Dispatch> times(const SlabProducts& products, const Phase& phase,
                                              const std::string& label) const {
        const std::int64_t D = builder_.spec().D();
        std::vector<Dispatch> made;
        for (std::int64_t d = 0; d < D; ++d)
            std::ranges::move(
                step_product(builder_, label,
                             products.product(d, builder_.at(buffer_, d * each_ + begin(phase)), D * each_)),
                std::back_inserter(made));
        return made;
    }

private:
    // Of gradients, where in each row the deltas of the phase begin.
    [[nodiscard]] std::int64_t begin(const Phase& phase) const {
        return builder_.spec().gradients ? phase.first * builder_.spec().H : 0;
    }

    PlanBuilder& builder_;
    std::int64_t each_ = 0;
    std::size_t buffer_ = 0;
};

}  // namespace

bool can_loop_with_products(const PlanBuilder& builder) {
    const std::vector<Phase> phases = phases_of(builder.spec());
    return builder.broadcasts() && builder.spec().H >= kFewestUnits &&
           std::all_of(phases.begin(), phases.end(),
                       [&](const Phase& phase) { return padded_shape(builder, phase).has_value(); });
}

void product_forward_loop(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views, StepOptions options) {
    const Spec& spec = builder.spec();
    Loop loop{spec.T, 0, 1, {}};
    const Operand hidden(builder, "operand");
    std::optional<Operand> reset;
    if (two_phases(spec)) reset.emplace(builder, "reset operand");
    for (const Phase& phase : phases_of(spec)) {
        const SlabProducts products(builder, inputs[Argument::recurrent_weight], *padded_shape(builder, phase));
        StepBlock block = views;
        block.sums(products.buffer(), products.n(), products.slabs());
        hidden.view(block, abi::kNextOperand);
        if (reset) reset->view(block, abi::kOperand);
        const std::size_t params = builder.constant("parameters", block.block());
        options.phase = phase.number;
        options.slabs = word(products.slabs());
        const std::size_t kernel = step_kernel(builder, "forward", options);
        const Operand& operand = phase.number == 2 ? *reset : hidden;
        std::ranges::move(operand.times(products, phase, "product"), std::back_inserter(loop.body));
        loop.body.push_back(step_dispatch(builder, "step", kernel, params, 0));
        if (phase.number != 1 && spec.has(Argument::init_state))
            builder.add(step_dispatch(builder, "first operand", kernel, params, -1));
    }
    builder.add(std::move(loop));
}

void product_backward_loop(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views) {
    const Spec& spec = builder.spec();
    Loop loop{spec.T, static_cast<std::int32_t>(spec.T - 1), -1, {}};
    const Operand deltas(builder, "deltas of a step");
    std::vector<Dispatch> initial;
    for (const Phase& phase : phases_of(spec)) {
        const SlabProducts products(builder, inputs[Argument::recurrent_weight], *padded_shape(builder, phase));
        StepBlock block = views;
        block.sums(products.buffer(), products.n(), products.slabs());
        deltas.view(block, abi::kNextOperand);
        const std::size_t params = builder.constant("parameters", block.block());
        const std::size_t kernel = step_kernel(builder, "backward", {phase.number, false, word(products.slabs())});
        std::vector<Dispatch> made = deltas.times(products, phase, "product back");
        if (phase.number != 2) {
            initial = made;
            initial.push_back(step_dispatch(builder, "initial state", kernel, params, -1));
        }
        std::ranges::move(made, std::back_inserter(loop.body));
        loop.body.push_back(step_dispatch(builder, "step back", kernel, params, 0));
    }
    builder.add(std::move(loop));
    if (!spec.has(Argument::init_state)) return;
    for (Dispatch& dispatch : initial) builder.add(std::move(dispatch));
}

}  // namespace vkrnn
