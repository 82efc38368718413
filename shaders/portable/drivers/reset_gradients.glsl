// After a backward loop with resets: the gradients of their factors and of the states that they start from. An
// invocation computes all steps of a unit and batch row. Bit i of kKeep says whether view kResetGradient + i is wanted.
// Workgroups: x and y count (batch row, unit block), unit blocks fastest; z is the direction.
#include "common/hidden_before.glsl"

CONSTANT bool wants_factors = (keep & 1u) != 0, wants_hidden = (keep & 2u) != 0, wants_cells = (keep & 4u) != 0;

// Returns whether resets scale a state.
INLINE bool is_scaled(uint s) {
#ifdef CELL_STABILIZER
    return s != CELL_STABILIZER;
#else
    return true;
#endif
}

// Stores a gradient of a start, or adds it to `sum` if the start is the same at all steps.
INLINE void add_start(Params p, uint view, uint d, int at, uint n, uint slot, uint j, Real some, INOUT(Real) sum) {
    if (params_of(p).strides[view].step[d] != 0)
        store_view(p, view, d, at, n, slot, j, some);
    else
        sum += some;
}

INLINE void finish_start(Params p, uint view, uint d, uint n, uint slot, uint j, Real sum) {
    if (params_of(p).strides[view].step[d] == 0) store_view(p, view, d, 0, n, slot, j, sum);
}

void main() {
    Params p = Params(push.params);
    uint H = params_of(p).H;
    uint blocks = (H + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x;
    uint d = gl_WorkGroupID.z, group = linear_group(), n = group / blocks;
    uint j = group % blocks * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (j >= H || n >= params_of(p).N) return;
    Real sums[CELL_STATES];
    for (uint s = 0; s < CELL_STATES; ++s) sums[s] = 0.0f;
    int end = length_of(p, n);
    for (int k = int(d); k < end; ++k) {
        int at = k - int(d);
        Real rest = 1.0f - load_view(p, kReset, d, at, n, 0, j);
        Real up = load_view(p, kResetUp, d, at, n, 0, j);
        if (wants_hidden) add_start(p, kResetStateGradient, d, at, n, 0, j, part(rest, up), sums[0]);
        Real of_factor = 0.0f;
        if (wants_factors)
            of_factor = (hidden_before(p, d, n, j, k) - load_view(p, kResetState, d, at, n, 0, j)) * up;
        for (uint s = 1; s < CELL_STATES; ++s) {
            Real up_cell = load_view(p, kResetUpCell, d, at, n, s - 1, j);
            if (wants_cells && s < RESET_STARTS)
                add_start(p, kResetCellGradient, d, at, n, 0, j, part(rest, up_cell), sums[s]);
            if (wants_factors && is_scaled(s)) {
                Real begun = s < RESET_STARTS ? load_view(p, kResetCell, d, at, n, 0, j) : Real(0.0f);
                of_factor += (load_previous(p, kCell, kInitCell, d, k, n, s - 1, j) - begun) * up_cell;
            }
        }
        if (wants_factors) store_view(p, kResetGradient, d, at, n, 0, j, of_factor);
    }
    if (wants_hidden) finish_start(p, kResetStateGradient, d, n, 0, j, sums[0]);
    if (wants_cells)
        for (uint s = 1; s < RESET_STARTS; ++s) finish_start(p, kResetCellGradient, d, n, 0, j, sums[s]);
}
