#include "constants.h"

#include <algorithm>
#include <cmath>

#include "step_block.h"

namespace vkrnn {

Constants& Constants::set(std::uint32_t number, std::string_view name, std::uint32_t value, As as) {
    if (number >= values_.size()) values_.resize(number + 1);
    values_[number] = value;
    if (!name.empty() && std::ranges::find(names_, name, &ConstantName::name) == names_.end())
        names_.push_back({number, name, as});
    return *this;
}

Constants& Constants::real(std::uint32_t number, std::string_view name, double value, Dtype dtype) {
    const bool wide = dtype == Dtype::float64;
    const auto words = wide ? abi::to_words(value) : abi::to_words(static_cast<float>(value));
    return set(number, name, words[0], wide ? As::float64 : As::float32).set(number + 1, {}, words[1]);
}

Constants& Constants::stored(std::uint64_t tensors, Dtype dtype) {
    if (tensors == 0) return *this;
    const std::uint32_t bfloat = dtype == Dtype::bfloat16 ? 1 : 0, high = static_cast<std::uint32_t>(tensors >> 32U);
    return set(abi::kStored, "in_16_bits", static_cast<std::uint32_t>(tensors), As::slots)
        .set(abi::kStoredHigh, high != 0 ? "further_in_16_bits" : "", high | bfloat << abi::kStoredBfloat, As::slots);
}

static_assert(abi::kActivation0 + kActivationSlots == abi::kNumber0);
static_assert(abi::kNumber0 + 2 * kNumberSlots == abi::kClipSlack && abi::kClipSlack + 2 == abi::kDeviceExp);
static_assert(abi::kNumber0 + 2 * kGradientClipSlot == abi::kGradientClip);
static_assert(abi::kNumber0 + 2 * kHardSigmoidAlphaSlot == abi::kHardSigmoidAlpha);
static_assert(abi::kNumber0 + 2 * kHardSigmoidBetaSlot == abi::kHardSigmoidBeta);
static_assert(abi::kNumber0 + 2 * kClipSlot == abi::kClip);

namespace {

// Returns the relative tolerance between a gate in z_state and the same activation computed again: some units in the
// last place, or the rounding error of a 16-bit type, or the error of an activation with the device's exp2.
double clip_slack(const Spec& spec) {
    switch (spec.dtype) {
        case Dtype::float64: return 0x1p-49;
        case Dtype::float16: return 0x1p-10;
        case Dtype::bfloat16: return 0x1p-7;
        default: return spec.device_exp ? 0x1p-15 : 0x1p-21;
    }
}

}  // namespace

std::uint32_t keeps_training_state(const Spec& spec) { return !spec.gradients && spec.descriptor.has(Flag::training); }

Constants cell_constants(const Spec& spec, const StepOptions& options) {
    const Descriptor& descriptor = spec.descriptor;
    const Vectors* vectors = spec.vectors();
    using As = Constants::As;
    Constants constants;
    const std::uint32_t masks = spec.masks_gates() ? 2 : spec.has(Argument::mask) ? 1 : 0;
    constants.set(abi::kHasMask, masks == 2 ? "gate_masks" : "mask", masks, As::flag)
        .set(abi::kPhase, "phase", options.phase)
        .set(abi::kGateOrder, "gate_order", gate_order(spec, 0, spec.G()), As::slots)
        .flag(abi::kScalesProduct, "scales_product", spec.scales_product())
        .set(abi::kOptions, {}, descriptor.cell_options())
        .set(abi::kKeep, spec.gradients ? "kept_cells" : "training", options.keep,
             spec.gradients ? As::count : As::flag)
        .flag(abi::kHasVectors, vectors != nullptr ? name_of(vectors->argument) : "", vectors != nullptr)
        .flag(abi::kHasLengths, "lengths", spec.has(Argument::lengths));
    const std::int64_t part_heads = options.part_heads == 0 ? spec.heads() : options.part_heads;
    constants.flag(abi::kHasParts, {}, part_heads != spec.heads()).flag(abi::kHasHeads, {}, part_heads > 1);
    const bool clips = descriptor.numbers[kClipSlot] != 0;
    constants.flag(abi::kHasClip, {}, clips);
    for (std::uint32_t i = 0; i < kActivationSlots; ++i)
        constants.set(abi::kActivation0 + i, i == 0 ? "activations" : "",
                      static_cast<std::uint32_t>(descriptor.activations[i]), As::activations);
    constants.real(abi::kClipSlack, {}, clips ? clip_slack(spec) : 0, spec.dtype)
        .flag(abi::kDeviceExp, "device_exp", spec.device_exp)
        .flag(abi::kHasUpstreamCell, "cell_gradients", has_each_cell(spec))
        .flag(abi::kHasReset, "resets", spec.has(Argument::reset))
        .flag(abi::kKeepsResetUp, "reset_gradients", spec.returns_reset_gradients())
        .flag(abi::kBlendsHidden, "blends", spec.blends_hidden())
        .flag(abi::kBlendsCell, "blends_cells", spec.blends_cell())
        .flag(abi::kKeepsBlendUp, "leak_gradient", spec.gradients && spec.has(Argument::leak));
    const bool clips_gradient = spec.gradients && std::isfinite(descriptor.numbers[kGradientClipSlot]);
    constants.flag(abi::kHasGradientClip, {}, clips_gradient);
    for (const Property& property : spec.cell().properties) {
        const auto* number = std::get_if<NumberProperty>(&property.kind);
        if (number != nullptr && (number->slot != kGradientClipSlot || clips_gradient))
            constants.real(abi::kNumber0 + 2 * static_cast<std::uint32_t>(number->slot), property.name,
                           descriptor.numbers.at(number->slot), spec.dtype);
        const auto* flag = std::get_if<Flag>(&property.kind);
        const auto* choice = std::get_if<ChoiceProperty>(&property.kind);
        if (choice != nullptr) flag = &choice->flag;
        if (flag != nullptr && *flag >= Flag::cell_options && descriptor.has(*flag))
            constants.set(abi::kOptions, choice != nullptr ? choice->words[1] : property.name,
                          descriptor.cell_options(), As::flag);
    }
    return constants;
}

}  // namespace vkrnn
