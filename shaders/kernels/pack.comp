// Copies a matrix into panels: out(panel, row, column of the panel), zeros where the matrix has no such row or column.
// Also pads a matrix (one wide panel), and takes the padding away again.
// Workgroups: x, y number elements of a panel in groups; z is the panel.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

layout(local_size_x = kElementwiseGroup) in;
layout(push_constant, std430) uniform Push { PackPush p; };

void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint row = at / p.width, column = at % p.width;
    if (row >= p.out_rows) return;
    uint from = gl_WorkGroupID.z * p.width + column;
    bool there = row < p.rows && from < p.columns;
    Real value = there ? load(p.in_, Stride(row) * p.in_row + Stride(from) * p.in_column) : 0.0;
    store(p.out_, Stride(gl_WorkGroupID.z) * p.out_panel + Stride(row) * p.out_row + column, value);
}
