// Gates i, f, z, o are activations of a_g = x'_g + r_g + p_g c[k-1]. Then c = f c[k-1] + i z and h = o g(c). With
// output_peephole_new_cell, a_o has p_o c instead of p_o c[k-1].
// States: h, c. Learned vectors: the peephole weights p. The training state has the activated gates.
#include "common/cell.glsl"
#define CELL_GATES 4
#define CELL_STATES 2
#define CELL_VECTORS 4

CELL_CONSTANT(kActivation0, input_activation)
CELL_CONSTANT(kActivation0 + 1, forget_activation)
CELL_CONSTANT(kActivation0 + 2, cell_activation)
CELL_CONSTANT(kActivation0 + 3, output_activation)
CELL_CONSTANT(kActivation0 + 4, state_activation)
CELL_CONSTANT(kHasVectors, has_peephole)
CELL_OPTION(0, output_peephole_new_cell)

INLINE Real gate(uint kind, Real sum, Real v, Real cell) {
    return activate_gate(kind, has_peephole != 0 ? sum + v * cell : sum);
}

// Not a loop over the gates: activations and indices are then constants even if a compiler does not unroll.
INLINE void cell_forward(const Real x[4], const Real r[4], const Real v[4], const Real before[2],
                         out Real after[2], out Real kept[4]) {
    kept[0] = gate(input_activation, x[0] + r[0], v[0], before[1]);
    kept[1] = gate(forget_activation, x[1] + r[1], v[1], before[1]);
    kept[2] = gate(cell_activation, x[2] + r[2], v[2], before[1]);
    after[1] = kept[1] * before[1] + kept[0] * kept[2];
    kept[3] = gate(output_activation, x[3] + r[3], v[3], output_peephole_new_cell ? after[1] : before[1]);
    after[0] = kept[3] * activate(state_activation, after[1]);
}

INLINE Real cell_hidden(const Real kept[4], const Real after[2]) {
    return kept[3] * activate(state_activation, after[1]);
}

INLINE Real cell_next(const Real kept[4], const Real before[2]) { return kept[1] * before[1] + kept[0] * kept[2]; }

INLINE void cell_backward(const Real kept[4], const Real v[4], const Real before[2], const Real after[2], Real q,
                          const Real up[2], out Real dx[4], out Real dr[4], out Real carry[2]) {
    Real y = activate(state_activation, after[1]);
    dx[3] = up[0] * y * gate_derivative(output_activation, kept[3]);
    Real dc = up[1] + up[0] * kept[3] * derivative(state_activation, y);
    Real through_output = 0.0f;   // gradient that reaches c[k-1] through the output gate's peephole
    if (has_peephole != 0 && output_peephole_new_cell) dc += v[3] * dx[3];
    if (has_peephole != 0 && !output_peephole_new_cell) through_output = v[3] * dx[3];
    dx[0] = dc * kept[2] * gate_derivative(input_activation, kept[0]);
    dx[1] = dc * before[1] * gate_derivative(forget_activation, kept[1]);
    dx[2] = dc * kept[0] * gate_derivative(cell_activation, kept[2]);
    carry[0] = 0.0f;
    carry[1] = dc * kept[1];
    if (has_peephole != 0) carry[1] += (v[0] * dx[0] + v[1] * dx[1]) + (v[2] * dx[2] + through_output);
    dr[0] = dx[0];
    dr[1] = dx[1];
    dr[2] = dx[2];
    dr[3] = dx[3];
}
