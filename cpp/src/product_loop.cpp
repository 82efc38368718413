#include "product_loop.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "broadcast.h"

namespace vkrnn {

namespace {

constexpr std::int64_t kFewestUnits = 16;  // less is not worth a kernel of its own
constexpr std::int64_t kPadding = 32;      // of k: blocks of as many divide it
constexpr std::int64_t kMostPadding = 8;   // times as much

// A phase of a step: the slots that it forms, in either order of the gates.
struct Phase {
    std::uint32_t number;  // see StepOptions
    std::int64_t first, slots;
};

std::vector<Phase> phases_of(const Spec& spec) {
    if (two_phases(spec)) return {{1, 0, spec.G() - 1}, {2, spec.G() - 1, 1}};
    return {{0, 0, spec.G()}};
}

// Of a product: n and k with padding.
struct Shape {
    std::int64_t n, k;
};

// None where the flavour has no such product.
std::optional<Shape> shape_of(const PlanBuilder& builder, const Phase& phase) {
    const Spec& spec = builder.spec();
    const std::int64_t slots = phase.slots * spec.H, least = round_up(spec.gradients ? slots : spec.H, kPadding);
    const std::int64_t n = round_up(spec.gradients ? spec.H : slots, panel_width(builder));
    for (std::int64_t k = least; k <= least + kMostPadding * kPadding; k += kPadding)
        if (can_step_product(builder, spec.N, n, k)) return Shape{n, k};
    return {};
}

// The products of a phase, for all directions, with what the step kernels have left for them in [N, D, each].
class PhaseProducts {
public:
    PhaseProducts(PlanBuilder& builder, const Phase& phase, std::size_t weights)
        : builder_(builder), spec_(builder.spec()), shape_(*shape_of(builder, phase)) {
        const std::int64_t H = spec_.H;
        slabs_ = step_slabs(builder, spec_.N, shape_.n, shape_.k);
        out_ = builder.scratch("recurrent products", spec_.D() * slabs_ * spec_.N * shape_.n);
        for (std::int64_t d = 0; d < spec_.D(); ++d) {
            const Matrix matrix{weights, (d * spec_.G() + phase.first) * H * H, H, 0, spec_.gradients};
            const std::int64_t n = spec_.gradients ? H : phase.slots * H, k = spec_.gradients ? phase.slots * H : H;
            panels_.push_back(pack_panels(builder, "recurrent weight", matrix, n, k, shape_.k, true));
        }
    }

    [[nodiscard]] std::uint32_t slabs() const { return word(slabs_); }
    void view(StepBlock& block) const { block.sums(out_, shape_.n, slabs_); }

    // `offset`: where in each row the operand begins.
    [[nodiscard]] std::vector<Dispatch> dispatches(const std::string& label, std::size_t operand, std::int64_t each,
                                                   std::int64_t offset) const {
        std::vector<Dispatch> made;
        for (std::int64_t d = 0; d < spec_.D(); ++d) {
            StepProduct product;
            product.rows = spec_.N;
            product.n = shape_.n;
            product.k = shape_.k;
            product.a = builder_.at(operand, d * each + offset);
            product.lda = spec_.D() * each;
            product.b = panels_[static_cast<std::size_t>(d)];
            product.out = builder_.at(out_, d * slabs_ * spec_.N * shape_.n);
            std::ranges::move(step_product(builder_, label, product), std::back_inserter(made));
        }
        return made;
    }

private:
    PlanBuilder& builder_;
    const Spec& spec_;
    Shape shape_;
    std::int64_t slabs_ = 0;
    std::size_t out_ = 0;
    std::vector<Panels> panels_;
};

// What the products multiply, as [N, D, each], with room for what they read beyond it. That is times zero, in the
// padding of the weights, but must be numbers.
struct Operand {
    Operand(PlanBuilder& builder, const std::string& name) {
        for (const Phase& phase : phases_of(builder.spec())) {
            const std::int64_t first = builder.spec().gradients ? phase.first * builder.spec().H : 0;
            each = std::max(each, first + shape_of(builder, phase)->k);
        }
        buffer = builder.scratch(name, builder.spec().N * builder.spec().D() * each);
        builder.clear(buffer);
    }
    std::int64_t each = 0;
    std::size_t buffer = 0;
};

}  // namespace

bool can_loop_with_products(const PlanBuilder& builder) {
    const std::vector<Phase> phases = phases_of(builder.spec());
    return builder.broadcasts() && builder.spec().H >= kFewestUnits &&
           std::all_of(phases.begin(), phases.end(),
                       [&](const Phase& phase) { return shape_of(builder, phase).has_value(); });
}

void product_forward_loop(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views, StepOptions options) {
    const Spec& spec = builder.spec();
    Loop loop{spec.T, 0, 1, {}};
    const Operand hidden(builder, "operand");
    std::optional<Operand> reset;
    if (two_phases(spec)) reset.emplace(builder, "reset operand");
    for (const Phase& phase : phases_of(spec)) {
        const PhaseProducts products(builder, phase, inputs[Argument::recurrent_weight]);
        StepBlock block = views;
        products.view(block);
        block.padded_state(abi::kNextOperand, hidden.buffer, hidden.each);
        if (reset) block.padded_state(abi::kOperand, reset->buffer, reset->each);
        const std::size_t params = builder.constant("parameters", block.block());
        options.phase = phase.number;
        options.slabs = products.slabs();
        const std::size_t kernel = step_kernel(builder, "forward", options);
        const Operand& operand = phase.number == 2 ? *reset : hidden;
        std::ranges::move(products.dispatches("product", operand.buffer, operand.each, 0),
                          std::back_inserter(loop.body));
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
        const PhaseProducts products(builder, phase, inputs[Argument::recurrent_weight]);
        StepBlock block = views;
        products.view(block);
        block.padded_state(abi::kNextOperand, deltas.buffer, deltas.each);
        const std::size_t params = builder.constant("parameters", block.block());
        const std::size_t kernel = step_kernel(builder, "backward", {phase.number, false, products.slabs()});
        std::vector<Dispatch> made =
            products.dispatches("product back", deltas.buffer, deltas.each, phase.first * spec.H);
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
