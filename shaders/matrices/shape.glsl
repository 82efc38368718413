// What a workgroup forms on matrix units: how many subgroups, and how many matrices each.
#ifndef VKRNN_MATRIX_SHAPE_GLSL
#define VKRNN_MATRIX_SHAPE_GLSL
#include "matrices/units.glsl"

layout(constant_id = kMatrixRows) const uint matrix_rows = 1;
layout(constant_id = kMatrixColumns) const uint matrix_columns = 1;
layout(constant_id = kRowGroups) const uint row_groups = 1;
layout(constant_id = kColumnGroups) const uint column_groups = 1;
layout(constant_id = kDepthGroups) const uint depth_groups = 1;

#endif
