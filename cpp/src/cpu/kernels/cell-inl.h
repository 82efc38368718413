// What cells declare and call on the CPU, as members of the class that cell.cpp.in makes of a cell. On GPUs,
// shaders/common/cell.glsl has the same.
#define CELL_CONSTANT(id, name) const abi::uint name = constants[abi::id];
#define CELL_OPTION(bit, name) const bool name = (cell_options >> bit & 1u) != 0u;
#define CELL_NUMBER(slot, name) \
    Real name() const { return number(abi::kNumber0 + 2 * (slot)); }

static constexpr abi::uint kNone = abi::kNone, kTanh = abi::kTanh, kSigmoid = abi::kSigmoid;
CELL_CONSTANT(kHasClip, has_clip)

HWY_INLINE Real activate(uint kind, Real x) const {
    return activation_value<T>(kind, x, number(abi::kHardSigmoidAlpha), number(abi::kHardSigmoidBeta));
}
HWY_INLINE Real derivative(uint kind, Real y) const {
    return activation_derivative<T>(kind, y, number(abi::kHardSigmoidAlpha));
}
HWY_INLINE Real activate_gate(uint kind, Real sum) const {
    return HWY_LIKELY(has_clip == 0) ? activate(kind, sum) : clipped_gate(kind, sum);
}
HWY_INLINE Real gate_derivative(uint kind, Real y) const {
    return HWY_LIKELY(has_clip == 0) ? derivative(kind, y) : clipped_derivative(kind, y);
}
// Clipping is not inlined: the loops are faster without its code.
HWY_NOINLINE Real clipped_gate(uint kind, Real sum) const {
    return activate(kind, clipped<T>(sum, number(abi::kClip)));
}
HWY_NOINLINE Real clipped_derivative(uint kind, Real y) const {
    const T clip = number(abi::kClip);
    return slope_between<T>(derivative(kind, y), y, activate(kind, -clip), activate(kind, clip),
                            number(abi::kClipSlack));
}
