// The minimal gated unit (Zhou et al., 2016, arXiv 1603.09420). One gate does what the GRU has two for:
//   f = sigmoid(x'_f + r_f);   h = (1 - f') h[k-1] + f' c, where f' = (1 - zoneout) f
//   scaled operand:                    c = tanh(x'_c + r_c), where r_c is the product with h[k-1] m f. Two phases.
//   scaled product (scales_product):   c = tanh(x'_c + r_c f). One phase.
// Zoneout (Krueger et al., 2016, arXiv 1606.01305) is applied as its expectation, as at inference.
// State: h. The training state has f and c.
#include "common/cell.glsl"
#define CELL_GATES 2
#define CELL_STATES 1
#define CELL_VECTORS 0
#define CELL_SCALE 0
#define CELL_KEEPS_HIDDEN

CELL_CONSTANT(kActivation0, forget_activation)
CELL_CONSTANT(kActivation0 + 1, candidate_activation)
CELL_NUMBER(0, zoneout)

INLINE void cell_forward_first(const Real x[2], const Real r[2], out Real kept[2]) {
    kept[0] = activate(forget_activation, x[0] + r[0]);
    kept[1] = 0.0f;
}

INLINE void cell_forward_second(const Real x[2], const Real r[2], const Real before[1], out Real after[1],
                                inout Real kept[2]) {
    kept[1] = activate(candidate_activation, x[1] + r[1]);
    Real share = (1.0f - zoneout()) * kept[0];
    after[0] = (1.0f - share) * before[0] + share * kept[1];
}

INLINE void cell_forward(const Real x[2], const Real r[2], const Real v[2], const Real before[1],
                         out Real after[1], out Real kept[2]) {
    cell_forward_first(x, r, kept);
    Real scaled[2];
    scaled[1] = r[1] * kept[0];
    cell_forward_second(x, scaled, before, after, kept);
}

INLINE Real cell_hidden(const Real kept[2], const Real before[1]) {
    Real share = (1.0f - zoneout()) * kept[0];
    return (1.0f - share) * before[0] + share * kept[1];
}

// If a step has two phases, this first one computes only that part of df which comes from f as the update gate.
INLINE void cell_backward(const Real kept[2], const Real v[2], const Real before[1], const Real after[1], Real q,
                          const Real up[1], out Real dx[2], out Real dr[2], out Real carry[1]) {
    Real share = (1.0f - zoneout()) * kept[0];
    dx[1] = up[0] * share * derivative(candidate_activation, kept[1]);
    Real df = up[0] * (1.0f - zoneout()) * (kept[1] - before[0]);
    if (scales_product != 0) df += dx[1] * q;
    dx[0] = df * derivative(forget_activation, kept[0]);
    dr[0] = dx[0];
    dr[1] = scales_product != 0 ? dx[1] * kept[0] : dx[1];
    carry[0] = up[0] * (1.0f - share);
}

// du is the gradient of the candidate's operand h[k-1] m f.
INLINE void cell_backward_second(const Real kept[2], Real du, Real operand, Real m, inout Real df[1],
                                 inout Real carry[1]) {
    df[0] += du * operand * derivative(forget_activation, kept[0]);
    carry[0] += du * kept[0] * m;
}
