// The sLSTM of xLSTM (Beck et al., 2024, arXiv 2405.04517), with a dense recurrent weight. Its gates are exponential,
// and the state m keeps them from growing:
//   m = max(f' + m[k-1], i'), where i' and f' are x' + r of the input and the forget gate
//   i = exp(i' - m);   f = exp(f' + m[k-1] - m);   z, o = activations of x' + r
//   c = f c[k-1] + i z;   n = f n[k-1] + i;   h = o c / n
// States: h; c, n, m. The training state has i, f, z and o.
#include "common/cell.glsl"
#define CELL_GATES 4
#define CELL_STATES 4
#define CELL_VECTORS 0

CELL_CONSTANT(kActivation0 + 2, cell_activation)
CELL_CONSTANT(kActivation0 + 3, output_activation)

INLINE void cell_forward(const Real x[4], const Real r[4], const Real v[4], const Real before[4],
                         out Real after[4], out Real kept[4]) {
    Real entering = x[0] + r[0], staying = x[1] + r[1] + before[3];
    after[3] = max(staying, entering);
    kept[0] = exponential(entering - after[3]);
    kept[1] = exponential(staying - after[3]);
    kept[2] = activate(cell_activation, x[2] + r[2]);
    kept[3] = activate(output_activation, x[3] + r[3]);
    after[1] = kept[1] * before[1] + kept[0] * kept[2];
    after[2] = kept[1] * before[2] + kept[0];
    after[0] = kept[3] * after[1] / after[2];
}

INLINE Real cell_hidden(const Real kept[4], const Real after[4]) { return kept[3] * after[1] / after[2]; }

INLINE void cell_backward(const Real kept[4], const Real v[4], const Real before[4], const Real after[4], Real q,
                          const Real up[4], out Real dx[4], out Real dr[4], out Real carry[4]) {
    Real ratio = after[1] / after[2];
    Real dc = up[1] + up[0] * kept[3] / after[2];
    Real dn = up[2] - up[0] * kept[3] * ratio / after[2];
    Real entering = (dc * kept[2] + dn) * kept[0], staying = (dc * before[1] + dn * before[2]) * kept[1];
    // m equals one of the two arguments of max, whose gate is then 1; the other gate is less than 1.
    Real dm = up[3] - entering - staying;
    Real stays = step(1.0f, kept[1]);
    dx[0] = entering + (1.0f - stays) * dm;
    dx[1] = staying + stays * dm;
    dx[2] = dc * kept[0] * derivative(cell_activation, kept[2]);
    dx[3] = up[0] * ratio * derivative(output_activation, kept[3]);
    carry[0] = 0.0f;
    carry[1] = dc * kept[1];
    carry[2] = dn * kept[1];
    carry[3] = dx[1];
    for (uint g = 0; g < 4; ++g) dr[g] = dx[g];
}
