#include "step_loop.h"

#include <algorithm>
#include <bit>

#include "step_kernels.h"

namespace vkrnn {
namespace {

// These are rough rates of a data center's GPU.
constexpr double kMicrosecondsPerDispatch = 4;  // of a small step, with the barrier before it
constexpr double kFlopsPerMicrosecond = 1e7;
constexpr double kWeightBytesPerMicrosecond = 4e6;

// Returns how many batch rows an invocation takes: a power of two, and not twice as many as there are.
std::uint32_t rows_of(const PlanBuilder& builder) {
    const std::uint32_t rows = builder.size("rows");
    const auto batch = static_cast<std::uint32_t>(std::min<std::int64_t>(builder.spec().N, rows));
    return std::min(rows, std::bit_ceil(batch));
}

std::size_t loop_kernel(PlanBuilder& builder, const std::string& driver, const StepOptions& options) {
    const Spec& spec = builder.spec();
    std::vector<std::uint32_t> constants = step_constants(spec, options, abi::kStepConstants);
    constants[abi::kLocalSize] = builder.size("workgroup");
    constants[abi::kLanes] = builder.size("lanes");
    constants[abi::kRows] = rows_of(builder);
    constants[abi::kVectorLoads] = spec.H % 4 == 0;
    return step_kernel(builder, driver, std::move(constants));
}

// Returns the workgroups of one step over all units, batch rows and directions.
std::array<std::uint32_t, 3> step_groups(const PlanBuilder& builder) {
    const Spec& spec = builder.spec();
    const std::int64_t unit_blocks = ceil_div(spec.H, builder.size("workgroup") / builder.size("lanes"));
    return builder.groups(unit_blocks * ceil_div(spec.N, rows_of(builder)), spec.D());
}

void transpose(PlanBuilder& builder, const std::string& label, std::size_t in, std::size_t out, std::int64_t rows,
               std::int64_t columns, std::int64_t batches) {
    abi::TransposePush push{};
    push.in_ = builder.at(in, 0);
    push.out_ = builder.at(out, 0);
    push.rows = u32(rows);
    push.columns = u32(columns);
    builder.dispatch(label, builder.kernel("transpose", {}),
                     builder.groups(ceil_div(rows * columns, abi::kElementwiseGroup), batches),
                     make_block(push, abi::kTransposePlaces), true);
}

}  // namespace

Sizes StepLoop::sizes(const Profile& profile, const Sizes& wanted) const {
    // On a CPU one invocation is one SIMD lane, and a subgroup is a whole workgroup's worth of work.
    const std::uint32_t subgroup = profile.subgroup_size;
    const bool cpu = profile.type == DeviceType::cpu;
    Sizes sizes{{"lanes", cpu ? 1 : std::min(32u, subgroup)},
                {"rows", cpu ? std::min(8u, subgroup) : 4},
                {"workgroup", cpu ? subgroup : std::max(128u, subgroup)}};
    for (auto& [name, size] : sizes) size = size_or(wanted, name, size);

    const std::uint32_t lanes = sizes["lanes"], rows = sizes["rows"], workgroup = sizes["workgroup"];
    require_size(std::has_single_bit(lanes) && lanes <= subgroup, "lanes",
                 "a power of two up to the subgroup's " + std::to_string(subgroup), lanes);
    // With one lane, the subgroup loads a row of the operand per invocation.
    const std::uint32_t most = lanes == 1 ? subgroup : abi::kMaxRows;
    require_size(rows >= 1 && rows <= most, "rows", "1 to " + std::to_string(most), rows);
    const std::uint32_t largest = std::min(profile.max_workgroup_invocations, profile.max_workgroup_size_x);
    require_size(workgroup >= subgroup && workgroup % subgroup == 0 &&  // NOLINT(clang-analyzer-core.DivideZero)
                     workgroup <= largest,
                 "workgroup",
                 "a multiple of the subgroup's " + std::to_string(subgroup) + " up to " + std::to_string(largest),
                 workgroup);
    return sizes;
}

std::vector<Sizes> StepLoop::variants(const Profile& profile) const {
    std::vector<Sizes> found;
    for (const std::uint32_t lanes : {profile.subgroup_size, profile.subgroup_size / 4})
        for (const std::uint32_t rows : {1U, 4U, 8U})
            if (lanes > 1 && rows <= abi::kMaxRows) found.push_back({{"lanes", lanes}, {"rows", rows}});
    return found;
}

std::optional<Offer> StepLoop::offer(const Spec& spec, const Profile& profile, const Sizes& wanted) const {
    const auto dispatches = static_cast<double>(forward_phases(spec).size());
    const double step = dispatches * kMicrosecondsPerDispatch + step_flops(spec) / kFlopsPerMicrosecond +
                        recurrent_bytes(spec) / kWeightBytesPerMicrosecond;
    Offer made{static_cast<double>(spec.T) * step, sizes(profile, wanted)};
    // Sums of more rows in float64 take more registers than some compilers for these GPUs give an invocation.
    if (is_amd(profile) && spec.dtype == Dtype::float64) made.sizes["rows"] = size_or(wanted, "rows", 2);
    return made;
}

void StepLoop::forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    views.weights(inputs[Argument::recurrent_weight], spec.G() * spec.H, spec.H, spec.H);
    const std::size_t params = builder.constant("parameters", views.block());
    Loop loop{spec.T, 0, 1, {}};
    for (const Phase& phase : forward_phases(spec)) {
        const std::size_t kernel = loop_kernel(builder, "forward", {phase.number, spec.descriptor.has(Flag::training)});
        loop.body.push_back(step_dispatch(phase.label, kernel, step_groups(builder), params));
    }
    builder.add(std::move(loop));
}

std::size_t StepLoop::backward_weight(PlanBuilder& builder) const {
    const Spec& spec = builder.spec();
    return builder.scratch("transposed weight", spec.D() * spec.G() * spec.H * spec.H);
}

void StepLoop::recompute(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    add_recompute(builder, pass);
    transpose(builder, "transpose", pass.inputs[Argument::recurrent_weight], pass.weight, spec.G() * spec.H, spec.H,
              spec.D());
}

void StepLoop::backward(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    const std::int64_t H = spec.H, G = spec.G();
    Loop loop{spec.T, static_cast<std::int32_t>(spec.T - 1), -1, {}};
    for (const Phase& phase : backward_phases(spec)) {
        StepBlock views = pass.views;
        views.skip_slots(abi::kRecurrentDelta, phase.first_slot);
        views.weights(pass.weight, H, G * H, phase.slots * H, phase.first_slot * H);
        const std::size_t params = builder.constant("parameters", views.block());
        const std::size_t kernel = loop_kernel(builder, "backward", {phase.number, false});
        loop.body.push_back(step_dispatch(phase.label, kernel, step_groups(builder), params));
    }
    Dispatch initial = at_step(loop.body.front(), "initial state", -1);
    builder.add(std::move(loop));
    if (spec.has(Argument::init_state)) builder.add(std::move(initial));
}

}  // namespace vkrnn
