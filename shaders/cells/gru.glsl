// The gates are z = f(x'_z + r_z), r = f(x'_r + r_r) and the candidate o. The new state is
//   h = z h[k-1] + (1 - z) o, or with flip_z
//   h = (1 - z) h[k-1] + z o
// There are two variants of the candidate:
//   reset after (scales_product):   o = f(x'_o + q r), where q = r_o + b2. One phase.
//   reset before:                   o = f(x'_o + r_o), where r_o is the product with h[k-1] m r. Two phases: z, r; o.
//                                   One phase if there are no products.
// State: h. Learned vector: the secondary bias b2. The training state has the activated gates.
#include "common/cell.glsl"
#define CELL_GATES 3
#define CELL_STATES 1
#define CELL_VECTORS 1
#define CELL_SCALE 1
#define CELL_KEEPS_HIDDEN

CELL_CONSTANT(kActivation0, update_activation)
CELL_CONSTANT(kActivation0 + 1, reset_activation)
CELL_CONSTANT(kActivation0 + 2, output_activation)
CELL_OPTION(0, flip_z)

INLINE Real blend(Real z, Real before, Real candidate) {
    return flip_z ? (1.0f - z) * before + z * candidate : z * before + (1.0f - z) * candidate;
}

// The first of two phases computes the gates z and r.
INLINE void cell_forward_first(const Real x[3], const Real r[3], out Real kept[3]) {
    kept[0] = activate_gate(update_activation, x[0] + r[0]);
    kept[1] = activate_gate(reset_activation, x[1] + r[1]);
    kept[2] = 0.0f;
}

INLINE void cell_forward_second(const Real x[3], const Real r[3], const Real before[1], out Real after[1],
                                inout Real kept[3]) {
    kept[2] = activate_gate(output_activation, x[2] + r[2]);
    after[0] = blend(kept[0], before[0], kept[2]);
}

INLINE void cell_forward(const Real x[3], const Real r[3], const Real v[3], const Real before[1],
                         out Real after[1], out Real kept[3]) {
    cell_forward_first(x, r, kept);
    Real candidate[3];
    candidate[2] = scales_product != 0 ? (r[2] + v[0]) * kept[1] : r[2];
    cell_forward_second(x, candidate, before, after, kept);
}

INLINE Real cell_hidden(const Real kept[3], const Real before[1]) { return blend(kept[0], before[0], kept[2]); }

// q is the recurrent product of the candidate, without b2. With reset before, the second phase computes dx of the reset
// gate.
INLINE void cell_backward(const Real kept[3], const Real v[3], const Real before[1], const Real after[1], Real q,
                          const Real up[1], out Real dx[3], out Real dr[3], out Real carry[1]) {
    Real z = kept[0];
    Real dz = up[0] * (flip_z ? kept[2] - before[0] : before[0] - kept[2]);
    Real candidate = up[0] * (flip_z ? z : 1.0f - z);
    carry[0] = up[0] * (flip_z ? 1.0f - z : z);
    dx[0] = dz * gate_derivative(update_activation, z);
    dx[2] = candidate * gate_derivative(output_activation, kept[2]);
    dx[1] = scales_product != 0 ? dx[2] * (q + v[0]) * gate_derivative(reset_activation, kept[1]) : 0.0f;
    dr[0] = dx[0];
    dr[1] = dx[1];
    dr[2] = scales_product != 0 ? dx[2] * kept[1] : dx[2];
}

// The second of two phases. du is the gradient of the candidate's operand h[k-1] m r.
INLINE void cell_backward_second(const Real kept[3], Real du, Real operand, Real m, inout Real dx_reset[1],
                                 inout Real carry[1]) {
    dx_reset[0] = du * operand * gate_derivative(reset_activation, kept[1]);
    carry[0] += du * kept[1] * m;
}
