// Finds out which element each invocation of a subgroup holds at each position of a matrix. To do so, it loads matrices
// whose elements are their own indices. Runs as one workgroup of one subgroup.
#include "matrices/units.glsl"

WORKGROUP_SIZE_ID(kMatrixSubgroup)
PUSH_CONSTANTS(TablePush, p)

SHARED_ARRAY(float16_t, numbers, [block_elements])

INLINE void put(uint at, uint value) { Words(p.table + Address(at) * 4).value = value; }

void main() {
    uint lane = gl_SubgroupInvocationID;
    for (uint i = lane; i < block_elements; i += subgroup) numbers[i] = float16_t(i);
    barrier();
    LeftMatrix left;
    coopMatLoad(left, numbers, 0, side, gl_CooperativeMatrixLayoutRowMajor);
    RightMatrix right;   // column n has elements n * side + k
    coopMatLoad(right, numbers, 0, side, gl_CooperativeMatrixLayoutColumnMajor);
    UNROLL for (uint i = 0; i < kMatrixElements; ++i) {
        uint position = lane * kMatrixElements + i;
        uint element = uint(left[i]);
        put(left_elements + position, element);
        put(left_positions + element, position);
        element = uint(right[i]);
        put(right_elements + position, element);
        put(right_positions + element, position);
    }
}
