// h = activation(z), z = x' + r. The only gate is z before its activation, which is also the training state.
#include "common/cell.glsl"
#define CELL_GATES 1
#define CELL_STATES 1
#define CELL_VECTORS 0

CELL_CONSTANT(kActivation0, activation)

INLINE void cell_forward(const Real x[1], const Real r[1], const Real v[1], const Real before[1],
                         out Real after[1], out Real kept[1]) {
    kept[0] = x[0] + r[0];
    after[0] = activate_gate(activation, kept[0]);
}

INLINE Real cell_hidden(const Real kept[1], const Real after[1]) { return activate_gate(activation, kept[0]); }

INLINE void cell_backward(const Real kept[1], const Real v[1], const Real before[1], const Real after[1], Real q,
                          const Real up[1], out Real dx[1], out Real dr[1], out Real carry[1]) {
    dx[0] = up[0] * gate_derivative(activation, activate_gate(activation, kept[0]));
    dr[0] = dx[0];
    carry[0] = 0.0f;
}
