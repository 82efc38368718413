// Copies the states after each direction's last step.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
SPECIALIZED(kLastLengths, uint, has_lengths, 0)
SPECIALIZED(kLastInitial, uint, has_initial, 0)
PUSH_CONSTANTS(LastRowsPush, p)

READONLY_REFERENCE(Length, int, value, 4)

void main() {
    uint row = p.directions * p.width;
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (at >= p.N * row) return;
    uint n = at / row, column = at % row;
    Stride state = Stride(n) * p.state_row + column / p.width * p.state_direction + column % p.width;
    int steps = int(p.T);
    if (has_lengths != 0) steps = Length(p.lengths + Address(n) * 4).value;
    Real last = 0.0f;
    if (steps != 0) {
        uint t = column < p.width ? uint(steps) - 1 : 0;
        last = load_tensor(0, p.in_, (Stride(t) * p.N + n) * row + column);
    } else if (has_initial != 0) {
        last = load_tensor(1, p.initial, state);
    }
    store_tensor(2, p.out_, state, last);
}
