// The sLSTM of xLSTM (Beck et al., 2024, arXiv 2405.04517), as its authors' package xlstm computes it. Its gates are
// exponential, and the state m keeps them from growing:
//   m = max(log f + m[k-1], i~), but m = i~ for a unit whose n[k-1] is 0
//   i = exp(min(i~ - m, 0));   f = exp(min(log f + m[k-1] - m, 0))
//   c = f c[k-1] + i tanh(z~);   n = f n[k-1] + i;   h = sigmoid(o~) c / n
// Here a~ = x_a + r_a is the sum that enters gate a, and log f is log(sigmoid(f~)), or f~ with exponential_forget.
// States: h; c, n, m. The training state has i~, f~, tanh(z~) and sigmoid(o~).
#include "common/cell.glsl"
#define CELL_GATES 4
#define CELL_STATES 4
#define CELL_VECTORS 0
#define CELL_STABILIZER 3

CELL_OPTION(0, exponential_forget)

INLINE Real log_forget(Real sum) {
    if (exponential_forget) return sum;
    return log_sigmoid(sum);
}

// Returns 1 for a unit that has no past, which is one whose n is 0, else 0.
INLINE Real is_empty(Real n) { return step(Real(0.0f), n) * step(n, Real(0.0f)); }

INLINE void cell_forward(const Real x[4], const Real r[4], const Real v[4], const Real before[4],
                         out Real after[4], out Real kept[4]) {
    kept[0] = activate_gate(kNone, x[0] + r[0]);
    kept[1] = activate_gate(kNone, x[1] + r[1]);
    kept[2] = activate_gate(kTanh, x[2] + r[2]);
    kept[3] = activate_gate(kSigmoid, x[3] + r[3]);
    Real staying = log_forget(kept[1]) + before[3];
    Real larger = choose(staying, kept[0], kept[0], staying);
    after[3] = choose(1.0f, is_empty(before[2]), kept[0], larger);
    Real i = exponential(kept[0] - after[3]), f = exponential(staying - after[3]);
    after[1] = f * before[1] + i * kept[2];
    after[2] = f * before[2] + i;
    after[0] = kept[3] * after[1] / after[2];
}

INLINE Real cell_hidden(const Real kept[4], const Real after[4]) { return kept[3] * after[1] / after[2]; }

// m equals i~, or else log f + m[k-1]; its gradient goes to the one that it equals. It equals i~ exactly, also if both
// have been rounded to 16 bits. Then i is 1, else f is 1.
INLINE void cell_backward(const Real kept[4], const Real v[4], const Real before[4], const Real after[4], Real q,
                          const Real up[4], out Real dx[4], out Real dr[4], out Real carry[4]) {
    Real m = after[3], entering = kept[0], late = log_forget(kept[1]) + before[3] - m;
    Real i = exponential(entering - m), f = choose(m, entering, exponential(late), 1.0f);
    Real ratio = after[1] / after[2], of_ratio = up[0] * kept[3] / after[2];
    Real dc = up[1] + of_ratio, dn = up[2] - of_ratio * ratio;
    Real to_i = (dc * kept[2] + dn) * i, to_f = (dc * before[1] + dn * before[2]) * f;
    to_f = choose(1.0f, is_empty(before[2]) * step(Real(0.0f), late), 0.0f, to_f);   // exp(min(late, 0)) is constant
    Real dm = up[3] - to_i - to_f;
    to_i += choose(m, entering, dm, 0.0f);
    to_f += choose(m, entering, 0.0f, dm);
    dx[0] = to_i * gate_derivative(kNone, kept[0]);
    dx[1] = to_f * gate_derivative(kNone, kept[1]);
    if (!exponential_forget) dx[1] = dx[1] * activate(kSigmoid, 0.0f - kept[1]);
    dx[2] = dc * i * gate_derivative(kTanh, kept[2]);
    dx[3] = up[0] * ratio * gate_derivative(kSigmoid, kept[3]);
    carry[0] = 0.0f;
    carry[1] = dc * f;
    carry[2] = dn * f;
    carry[3] = to_f;
    for (uint g = 0; g < 4; ++g) dr[g] = dx[g];
}
