// Computes the product of two operands in blocks: see MatrixProductPush.
#include "common/memory.glsl"
#include "matrices/multiply.glsl"

WORKGROUP_SIZE_ID(kLocalSize)
PUSH_CONSTANTS(MatrixProductPush, p)

// Tiles are counted band by band, so that workgroups that run at the same time share rows and columns in the cache.
CONSTANT uint band_tiles = 4;   // tiles of a band along m
CONSTANT uint groups = row_groups * column_groups;
CONSTANT uint block_vec4s = block_elements / 4;
SHARED_ARRAY(vec4, staged, [groups * block_vec4s])   // one matrix per subgroup on its way to memory

ARRAY_REFERENCE(Numbers, float, values, 16)

void main() {
    uint group = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    uint tile_m = side * matrix_rows * row_groups, tile_n = side * matrix_columns * column_groups;
    uint tiles_m = (p.m + tile_m - 1) / tile_m, tiles_n = (p.n + tile_n - 1) / tile_n;
    uint tile = gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x;
    if (tile >= tiles_m * tiles_n) return;
    uint band = tile / (band_tiles * tiles_n) * band_tiles, in_band = tile % (band_tiles * tiles_n);
    uint band_rows = min(band_tiles, tiles_m - band);
    uint i_tile = band + in_band % band_rows, j_tile = in_band / band_rows;
    uint batch = gl_WorkGroupID.z % p.batches, slab = gl_WorkGroupID.z / p.batches;
    uint i_block = (i_tile * row_groups + group / column_groups) * matrix_rows;
    uint j_block = (j_tile * column_groups + group % column_groups) * matrix_columns;

    uint left_vectors = left_parts * subgroup, right_vectors = right_parts * subgroup;   // per block
    Blocks left, right;
    left.base = p.a;
    left.first = batch * p.a_batch + Stride(i_block) * p.k_blocks * left_vectors;
    left.i_apart = p.k_blocks * left_vectors;
    right.base = p.b;
    right.first = batch * p.b_batch + Stride(j_block) * p.k_blocks * right_vectors;
    right.i_apart = p.k_blocks * right_vectors;
    SumMatrix sums[matrix_rows][matrix_columns];
    multiply_blocks(left, right, Run(slab * p.chunk, min(p.k_blocks, (slab + 1) * p.chunk), 1, lane), sums);

    // Do not use `continue` in these loops. NVIDIA's driver does not unroll a loop that has one, and then keeps the
    // sums in memory.
    float a_up = scale_up(Words(p.a_absmax).value), b_up = scale_up(Words(p.b_absmax).value);
    Address c = tensor_element(0, p.c, batch * p.c_batch + slab * p.c_slab);
    uint first_i = i_block * side, first_j = j_block * side;
    UNROLL for (uint r = 0; r < matrix_rows; ++r)
        UNROLL for (uint s = 0; s < matrix_columns; ++s) sums[r][s] = sums[r][s] * a_up * b_up;
    if (!is_16bit(0) && (i_tile + 1) * tile_m <= p.m && (j_tile + 1) * tile_n <= p.n && p.ldc % 4 == 0 && c % 16 == 0) {
        UNROLL for (uint r = 0; r < matrix_rows; ++r)
            UNROLL for (uint s = 0; s < matrix_columns; ++s) {
                Stride at = Stride(first_i + r * side) * p.ldc + first_j + s * side;
                coopMatStore(sums[r][s], Numbers(c + Address(at) * 4).values, 0, p.ldc,
                             gl_CooperativeMatrixLayoutRowMajor);
            }
    } else {
        UNROLL for (uint r = 0; r < matrix_rows; ++r)
            UNROLL for (uint s = 0; s < matrix_columns; ++s) {
                subgroupBarrier();
                coopMatStore(sums[r][s], staged, group * block_vec4s, side / 4, gl_CooperativeMatrixLayoutRowMajor);
                subgroupMemoryBarrierShared();
                subgroupBarrier();
                UNROLL for (uint e = 0; e < kMatrixElements; ++e) {
                    uint element = e * subgroup + lane;
                    uint i = first_i + r * side + element / side, j = first_j + s * side + element % side;
                    if (i < p.m && j < p.n)
                        store_tensor(0, c, Stride(i) * p.ldc + j,
                                     staged[group * block_vec4s + element / 4][element % 4]);
                }
            }
    }
}
