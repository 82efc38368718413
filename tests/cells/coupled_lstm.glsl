// An LSTM whose input and forget gates are coupled (Greff et al., 2015, arXiv 1503.04069, CIFG):
//   i, z, o = activations of x' + r;   c = (1 - i) c[k-1] + i z;   h = o tanh(c)
// States: h; c. The training state has i, z and o.
#include "common/cell.glsl"
#define CELL_GATES 3
#define CELL_STATES 2
#define CELL_VECTORS 0

CELL_CONSTANT(kActivation0, input_activation)
CELL_CONSTANT(kActivation0 + 1, cell_activation)
CELL_CONSTANT(kActivation0 + 2, output_activation)

INLINE void cell_forward(const Real x[3], const Real r[3], const Real v[3], const Real before[2],
                         out Real after[2], out Real kept[3]) {
    kept[0] = activate(input_activation, x[0] + r[0]);
    kept[1] = activate(cell_activation, x[1] + r[1]);
    kept[2] = activate(output_activation, x[2] + r[2]);
    after[1] = (1.0f - kept[0]) * before[1] + kept[0] * kept[1];
    after[0] = kept[2] * activate(kTanh, after[1]);
}

INLINE Real cell_hidden(const Real kept[3], const Real after[2]) { return kept[2] * activate(kTanh, after[1]); }

INLINE Real cell_next(const Real kept[3], const Real before[2]) {
    return (1.0f - kept[0]) * before[1] + kept[0] * kept[1];
}

INLINE void cell_backward(const Real kept[3], const Real v[3], const Real before[2], const Real after[2], Real q,
                          const Real up[2], out Real dx[3], out Real dr[3], out Real carry[2]) {
    Real y = activate(kTanh, after[1]);
    Real dc = up[1] + up[0] * kept[2] * derivative(kTanh, y);
    dx[0] = dc * (kept[1] - before[1]) * derivative(input_activation, kept[0]);
    dx[1] = dc * kept[0] * derivative(cell_activation, kept[1]);
    dx[2] = up[0] * y * derivative(output_activation, kept[2]);
    carry[0] = 0.0f;
    carry[1] = dc * (1.0f - kept[0]);
    for (uint g = 0; g < 3; ++g) dr[g] = dx[g];
}
