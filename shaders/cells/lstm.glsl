// Gates i, f, z, o = activations of a_g = x'_g + r_g + p_g c[k-1];   c = f c[k-1] + i z;   h = o g(c).
// States: h, c. Vectors: the peephole weights p. Training keeps the activated gates.
#include "cell.glsl"
#define CELL_GATES 4
#define CELL_STATES 2
#define CELL_VECTORS 4

CELL_CONSTANT(kActivation0, input_activation)
CELL_CONSTANT(kActivation0 + 1, forget_activation)
CELL_CONSTANT(kActivation0 + 2, cell_activation)
CELL_CONSTANT(kActivation0 + 3, output_activation)
CELL_CONSTANT(kActivation0 + 4, state_activation)
CELL_CONSTANT(kHasVectors, has_peephole)

uint gate_activation(uint gate) {
    return gate == 0 ? input_activation : gate == 1 ? forget_activation : gate == 2 ? cell_activation : output_activation;
}

void cell_forward(const Real x[4], const Real r[4], const Real v[4], const Real before[2],
                  out Real after[2], out Real kept[4]) {
    for (uint g = 0; g < 4; ++g) {
        Real peephole = has_peephole != 0 ? v[g] * before[1] : 0.0;
        kept[g] = activate(gate_activation(g), x[g] + r[g] + peephole);
    }
    after[1] = kept[1] * before[1] + kept[0] * kept[2];
    after[0] = kept[3] * activate(state_activation, after[1]);
}

Real cell_hidden(const Real kept[4], const Real after[2]) { return kept[3] * activate(state_activation, after[1]); }

void cell_backward(const Real kept[4], const Real v[4], const Real before[2], const Real after[2], Real q,
                   const Real up[2], out Real dx[4], out Real dr[4], out Real carry[2]) {
    Real y = activate(state_activation, after[1]);
    Real dc = up[1] + up[0] * kept[3] * derivative(state_activation, y);
    dx[0] = dc * kept[2] * derivative(input_activation, kept[0]);
    dx[1] = dc * before[1] * derivative(forget_activation, kept[1]);
    dx[2] = dc * kept[0] * derivative(cell_activation, kept[2]);
    dx[3] = up[0] * y * derivative(output_activation, kept[3]);
    carry[0] = 0.0;
    carry[1] = dc * kept[1];
    for (uint g = 0; g < 4; ++g) {
        dr[g] = dx[g];
        if (has_peephole != 0) carry[1] += v[g] * dx[g];
    }
}
