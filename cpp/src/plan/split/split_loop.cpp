#include "split_loop.h"

#include <algorithm>

#include "plan/cost_table.h"
#include "split/split_abi.h"

namespace vkrnn {
namespace {

constexpr std::int64_t kGroup = 256;       // units of a workgroup, if it may have any number of them
constexpr std::int64_t kMostUnits = 1024;  // and if their number must divide H
constexpr std::int64_t kMostBlocks = 4;

// Returns whether the operand of a gradient call's products needs scales. Deltas may lie outside float16's range.
bool needs_scales(const Spec& spec) { return spec.gradients && spec.dtype == Dtype::float16; }

// How workgroups divide the units, and how a backward product divides its sum.
struct SplitShape {
    std::int64_t units, invocations;     // of a workgroup
    std::int64_t parts = 1, blocks = 0;  // parts of the sum; blocks of units with a scale each, 0 without scales

    SplitShape(const Spec& spec, const Profile& profile) {
        const std::int64_t most = std::min(profile.max_workgroup_invocations, profile.max_workgroup_size_x);
        units = std::min({spec.H, kGroup, most});
        if (spec.gradients && !spec.two_phases()) parts = spec.G();
        if (needs_scales(spec)) {
            blocks = ceil_div(spec.H, std::min(kMostUnits, most));
            while (spec.H % blocks != 0) ++blocks;
            units = spec.H / blocks;
            parts *= blocks;
        }
        invocations = ceil_div(units, profile.subgroup_size) * profile.subgroup_size;
    }
};

// Adds one loop's buffers and dispatches to a plan.
class SplitPlan {
public:
    SplitPlan(PlanBuilder& builder, const ProductStrategy& products, std::size_t weight, StepBlock views)
        : builder_(builder),
          spec_(builder.spec()),
          products_(products),
          shape_(spec_, builder.profile()),
          weight_(weight),
          views_(views) {
        const std::int64_t rows = spec_.N * spec_.D() * spec_.H;
        const std::int64_t operands = rows * operand_slots(), sums = rows * product_slots();
        operand_ = builder_.accesses_16bit() && products_.narrows_operands(spec_.dtype)
                       ? builder_.scratch_16bit("step's operand", operands)
                       : builder_.scratch("step's operand", operands);
        sums_ = builder_.scratch("step's product", sums);
        views_.state(abi::kStepOperand, operand_, operand_slots());
        views_.state(abi::kStepProduct, sums_, product_slots());
        if (shape_.blocks > 0)
            views_.address(abi::kBlockScales, 0, builder_.scratch("scales", 2 * spec_.D() * spec_.N * shape_.blocks));
    }

    // Adds what comes before the loop: the operand of the first product. Backward, that is the last step without the
    // product of a later one.
    void start() {
        if (!spec_.gradients) return add_step(phases_.front(), -1, phases_.front().label);
        for (const Phase& phase : phases_) {
            if (&phase != &phases_.front()) add_product(phase);
            add_step(phase, static_cast<std::int32_t>(spec_.T - 1), phase.label);
        }
    }

    void loop() {
        Loop loop = loop_over(spec_);
        if (spec_.gradients) {
            --loop.count;
            --loop.first;
        }
        if (loop.count == 0) return;
        loop.body = builder_.collect([&] {
            for (const Phase& phase : phases_) {
                add_product(phase);
                builder_.add(cells(phase));
            }
        });
        builder_.add(std::move(loop));
    }

    void initial_state() {
        add_product(phases_.front());
        add_step(phases_.front(), -1, "initial state");
    }

private:
    [[nodiscard]] std::int64_t operand_slots() const { return spec_.gradients ? spec_.G() : 1; }
    [[nodiscard]] std::int64_t product_slots() const { return spec_.gradients ? shape_.parts : spec_.G(); }

    void add_product(const Phase& phase) {
        const std::int64_t N = spec_.N, H = spec_.H, D = spec_.D(), G = spec_.G();
        const std::int64_t first = phase.first * H, count = phase.count * H;
        Product product{N, count, H, D, {}, {}, {}};
        product.a = {operand_, 0, D * H, H, false};
        product.b = {weight_, first * H, H, G * H * H, false};
        product.c = {sums_, first, D * G * H, G * H, false};
        if (spec_.gradients) {
            // The parts of both directions' sums are one batch. In a step with two phases, each has a single part.
            const std::int64_t parts = shape_.parts, k = count / parts, all = parts > 1 ? k : G * H;
            product = {N, H, k, D * parts, {}, {}, {}};
            product.a = {operand_, first, D * G * H, all, false};
            product.b = {weight_, first * H, H, all * H, true};
            product.c = {sums_, 0, D * parts * H, H, false};
        }
        products_.product(builder_, phase.label + ": product", product, false);
    }

    [[nodiscard]] Dispatch cells(const Phase& phase) {
        Constants constants = cell_constants(spec_, {phase.number, keeps_training_state(spec_)});
        constants.set(abi::kLocalSize, "workgroup", u32(shape_.invocations))
            .set(abi::kSplitUnits, "units", u32(shape_.units))
            .stored(views_.stored(), spec_.dtype);
        if (spec_.gradients)
            constants.set(abi::kSplitParts, "parts", u32(shape_.parts))
                .set(abi::kSplitBlocks, "scaled_blocks", u32(shape_.blocks));
        const std::size_t kernel =
            builder_.cell_kernel(spec_.gradients ? "split_backward" : "split_forward", std::move(constants));
        const std::int64_t blocks = ceil_div(spec_.H, shape_.units);
        return step_dispatch(builder_, phase.label, kernel, builder_.groups(spec_.N * blocks, spec_.D()), views_);
    }

    void add_step(const Phase& phase, std::int32_t step, std::string label) {
        builder_.add(at_step(cells(phase), step, std::move(label)));
    }

    PlanBuilder& builder_;
    const Spec& spec_;
    const ProductStrategy& products_;
    const SplitShape shape_;
    const std::size_t weight_;
    StepBlock views_;
    const std::vector<Phase> phases_ = phases_of(spec_);
    std::size_t operand_ = 0, sums_ = 0;
};

// Returns whether float16 can hold the operands of the recurrent products. Forward with the library, states must be
// bounded, and no mask may multiply an initial state or one that a reset starts from. Backward, blocks of units have
// scales, so a step must have one phase and at most kMostBlocks blocks.
bool fits_float16(const Spec& spec, const Profile& profile) {
    if (spec.gradients) return !spec.two_phases() && SplitShape(spec, profile).blocks <= kMostBlocks;
    return !profile.product_library ||
           (is_bounded(spec) &&
            !(spec.has(Argument::mask) && (spec.has(Argument::init_state) || spec.has(Argument::reset_state))));
}

// Estimates the microseconds of a step.
double step_cost(const Spec& spec, const SplitCosts& costs) {
    const SplitCosts::Pass& pass = spec.gradients ? costs.backward : costs.forward;
    const bool half = is_half(spec.dtype);
    const auto phases = static_cast<double>(phases_of(spec).size());
    const double step = phases * pass.step +
                        step_flops(spec) / (half ? pass.half_flops_per_us : pass.rounded_flops_per_us) +
                        (half ? recurrent_bytes(spec) / 2 / costs.half_bytes_per_us
                              : recurrent_bytes(spec) / costs.rounded_bytes_per_us) +
                        static_cast<double>(spec.N * spec.D() * spec.H) / pass.cells_per_us;
    return std::max(phases * pass.least, step);
}

}  // namespace

const ProductStrategy& SplitLoop::products(const Profile& profile) const {
    if (profile.product_library) return cublas_;
    return tiled_;
}

std::optional<CostEstimate> SplitLoop::estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                const Parameters& /*wanted*/) const {
    if (!spec.recurs() || spec.heads() > 1 || spec.masks_gates()) return std::nullopt;
    if (spec.piece_steps != 0) return std::nullopt;  // a backward pass begins before its loop
    if (spec.dtype == Dtype::float16 && !fits_float16(spec, profile)) return std::nullopt;
    const bool rounds = spec.precision == Precision::tf32;
    // The loop was measured with the library only, and only in 16-bit types and TF32.
    const bool is_measured = profile.product_library && (is_half(spec.dtype) || rounds);
    return CostEstimate{static_cast<double>(spec.T) * step_cost(spec, costs.split), {}, !is_measured};
}

void SplitLoop::run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    SplitPlan plan(builder, products(builder.profile()), inputs[Argument::recurrent_weight], views);
    plan.start();
    plan.loop();
    if (builder.spec().passes_to_initial()) plan.initial_state();
}

}  // namespace vkrnn
