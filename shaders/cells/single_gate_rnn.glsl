// h = activation(z), z = x' + r.   Gate 0 is z before its activation, which is also what training keeps.
#include "activation.glsl"
#define CELL_GATES 1
#define CELL_STATES 1
#define CELL_VECTORS 0

layout(constant_id = kActivation0) const uint activation = kRelu;

void cell_forward(const float x[1], const float r[1], const float v[1], const float before[1],
                  out float after[1], out float kept[1]) {
    kept[0] = x[0] + r[0];
    after[0] = activate(activation, kept[0]);
}

float cell_hidden(const float kept[1], const float after[1]) { return activate(activation, kept[0]); }

void cell_backward(const float kept[1], const float v[1], const float before[1], const float after[1], float q,
                   const float up[1], out float dx[1], out float dr[1], out float carry[1]) {
    dx[0] = up[0] * derivative(activation, activate(activation, kept[0]));
    dr[0] = dx[0];
    carry[0] = 0.0;
}
