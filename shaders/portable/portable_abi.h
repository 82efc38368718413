// What C++ and the portable kernels share: products, sums, transposes and conversions. See common/abi.h.
#ifndef VKRNN_PORTABLE_ABI_H
#define VKRNN_PORTABLE_ABI_H
#include "common/abi.h"

#ifdef __cplusplus
namespace vkrnn::abi {
#endif

// Matrix product: C(m, n) = sum over k of A(m, k) B(n, k), per batch.
// Specialization constants.
const uint kGemmAColumns = 0u;      // 1: A is stored with m contiguous (element k * lda + m), else m * lda + k
const uint kGemmBColumns = 1u;      // the same for B, with n instead of m
const uint kGemmVectors = 2u;       // 1: all sizes and strides are multiples of 4 elements
// Register products: invocations per workgroup, which is one subgroup, and the elements of C per invocation.
const uint kGemmLanes = 3u;
const uint kRegisterTileM = 16u;
const uint kRegisterTileN = 4u;
// Tiled products: invocations per workgroup, and rows and columns of its tile of C, 64 or 128.
// A stage of shared memory has kTiledDepth rows of an operand's tile, each padded by kTiledPadding elements.
const uint kTiledInvocations = 256u;
const uint kTiledDepth = 8u;
const uint kTiledPadding = 4u;
const uint kGemmStoreVectors = 3u;   // 1: C can be stored four elements at a time
const uint kGemmTile = 4u;

// Long sums are split into slabs of k, each of which has its own copy of C.
// Tensors 0, 1, 2 are a, b, c. Workgroups: x and y count the tiles of C, n fastest; z = slab * batches + batch.
struct GemmPush {
    Address a, b, c;                    // batch 0
    Stride a_batch, b_batch, c_batch;   // elements from one batch to the next
    Stride c_slab;                      // elements from one slab to the next
    uint m, n, k;
    uint lda, ldb, ldc;
    uint chunk;                         // slab s sums k in [s * chunk, min(k, (s + 1) * chunk))
    uint batches;
};

// Sums over rows: out(part, c) = sum over the part's rows of in(row, c) [* factor(row, c)].
// Column c is (direction, gate, unit) = (c / (gates * width), c / width % gates, c % width).
// Specialization constants.
const uint kReduceFactor = 0u;      // 1: multiply by `factor`
// Tensors 0, 1, 2 are in_, factor, out_. Workgroups: x and y count groups of columns, one column per invocation; z is
// the part.
struct ReducePush {
    Address in_, factor, out_;
    uint rows, part;                    // rows in total; rows per part
    uint width, gates, directions;      // columns = directions * gates * width
    uint in_row, in_direction, in_gate;             // strides in elements
    uint factor_row, factor_direction, factor_gate;
};

// Transpose of each matrix of a batch. Tensors 0, 1 are in_, out_.
struct TransposePush {
    Address in_, out_;
    uint rows, columns;
};

// The states after each direction's last step: out(n, d, u) = in(t, n, d, u), where t is lengths[n] - 1, or T - 1, for
// the first direction and 0 for the second. A row of length 0 has its initial state, or zeros.
// Specialization constants.
const uint kLastLengths = 0u;       // 1: there are lengths
const uint kLastInitial = 1u;       // 1: there are initial states
// Tensors 0, 1, 2 are in_, initial, out_. Workgroups: x and y count groups of elements of out_.
struct LastRowsPush {
    Address in_, initial, out_, lengths;
    uint T, N, width, directions;       // width: elements of one direction
    uint state_row, state_direction;    // strides of out_ and initial, in elements
};

// out(i) = a(i) b(i), or a(i) + b(i); but a(i) alone where i % period >= limit.
// Specialization constants.
const uint kCombineAdds = 0u;       // 1: add, else multiply
// Tensors 0, 1, 2 are a, b, out_. Workgroups: x and y count groups of elements.
struct CombinePush {
    Address a, b, out_;
    uint count;
    uint limit, period;
    uint padding;
};

// Copy of rows: out(row, i) = in(row, i). Tensors 0, 1 are in_, out_. Workgroups: x and y count groups of runs.
// Specialization constants.
const uint kCopyVectors = 0u;       // 1: a run is four elements, which both tensors have side by side and aligned; else one
struct CopyRowsPush {
    Address in_, out_;
    uint count, width;                  // runs in total, and of a row
    uint in_row, out_row;               // strides in elements
};

// Conversion between float32 and a 16-bit type.
// Specialization constants.
const uint kConvertBfloat = 0u;     // 1: bfloat16, else float16
const uint kConvertNarrow = 1u;     // 1: from float32 to 16 bits, else to float32
const uint kConvertEach = 8u;       // elements per invocation
// Workgroups: x and y count groups of invocations. Both addresses are multiples of 4 bytes.
struct ConvertPush {
    Address in_, out_;
    uint count;
    uint padding;
};

#ifdef __cplusplus
}  // namespace vkrnn::abi
#endif
#endif
