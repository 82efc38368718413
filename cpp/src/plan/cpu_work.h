// Parameters of the CPU's kernels: one struct per kernel, which is stored in a Dispatch. Its buffer references come
// first. Strides and leading dimensions are in elements.
#pragma once

#include <cstdint>

#include "common/step_abi.h"

namespace vkrnn::cpu {

using abi::Address;
using abi::Stride;

// Makes the table of live_rows.h, with 64-bit integers, from the lengths of N batch rows.
struct OrderWork {
    Address lengths, out;
    std::int64_t T, N;
    std::uint32_t lines, padding;  // lines = 1: the table includes its lines
};

// Returns the number of elements of that table.
constexpr std::int64_t live_rows_elements(std::int64_t T, std::int64_t N, bool lines) {
    return 2 * N + T + 1 + (lines ? T * N : 0);
}

// Tells a product or sum over the rows of sequences which rows are live, in a call with lengths. It skips all other
// rows. If a sequence is not packed, its live rows are those listed in the table's lines.
struct LiveWork {
    std::int64_t T, N;      // 0 if there are no lengths
    std::uint32_t a, b, c;  // 1: this operand is not packed; its live rows are those in the table's lines
    std::uint32_t along_k;  // 1: the rows run along k, 0: along m
};

// Writes matrices B(n, k) as panels: out[direction][block][batch][n / lanes][k][n % lanes]. Elements past the last n
// are zeros. If n are the units of several heads, `head_units` are those of a head, and `in_head` leads to the next
// head.
struct PackWork {
    Address in, out;
    Stride in_n, in_k, in_batch, in_block, in_direction, in_head;
    std::int64_t n, k, batches, blocks, directions, head_units;
};

// Returns the number of elements of such panels.
constexpr std::int64_t panel_elements(std::int64_t n, std::int64_t k, std::int64_t batches, std::int64_t lanes) {
    return (n + lanes - 1) / lanes * lanes * k * batches;
}

// C(m, n) = sum over k of A(m, k) B(n, k), for each of `batches` in each of `sets`. Rows of C are contiguous. B is
// packed once for all threads, kPackedDepth of k at a time, into `packed`, which has product_elements(). If C is a
// sequence that is not packed, its rows that are not live are cleared.
struct ProductWork {
    Address a, b, c, packed, live;
    Stride a_m, a_k, a_batch;
    Stride b_n, b_k, b_batch;
    Stride c_m, c_batch;
    Stride a_set, b_set, c_set;
    std::int64_t m, n, k, batches, sets;
    LiveWork of_live;
    std::uint32_t is_packed;  // 1: `packed` has the panels of B already; one batch, k <= kPackedDepth
    // 1: the batches are heads of few columns. Rows of A and of C have one head after the other, and `packed` has room
    // for the panels of all heads side by side, as if they were one matrix.
    std::uint32_t narrow_heads;
};
inline constexpr std::int64_t kPackedDepth = 4096;
inline constexpr std::int64_t kNarrowDepth = 128;  // the most k of narrow heads
constexpr std::int64_t product_elements(std::int64_t n, std::int64_t k, std::int64_t lanes) {
    return panel_elements(n, k < kPackedDepth ? k : kPackedDepth, 1, lanes);
}

// out(d, g, j) = sum over rows of in(row, d, g, j) [* factor(row, d, g, j)]; out is contiguous.
struct SumWork {
    Address in, factor, out, live;
    Stride in_row, in_direction, in_gate;
    Stride factor_row, factor_direction, factor_gate;
    std::int64_t rows, directions, gates, width;
    LiveWork of_live;  // its `a` is for `in`, its `b` for the factor
    std::uint32_t has_factor, padding;
};

// Converts between float32 and a 16-bit type.
struct ConvertWork {
    Address in, out;
    std::int64_t count;
    std::uint32_t bfloat, narrow;  // bfloat = 1: bfloat16, 0: float16; narrow = 1: from float32, 0: to float32
};

// Copies the states after each direction's last step: see LastRows in plan/builder.h.
struct LastRowsWork {
    Address in, initial, out, lengths, live;
    std::int64_t T, N, width, directions;
    std::int64_t state_row, state_direction;  // strides of `out` and `initial`
    std::uint32_t has_lengths, has_initial;
    std::uint32_t packed, padding;  // packed = 1: the sequence is packed, and `live` is the table of live_rows.h
};

// Two tensors, element by element: see Combination in plan/builder.h.
struct CombineWork {
    Address a, b, out;
    std::int64_t count, limit, period;
    std::uint32_t adds, padding;  // adds = 1: add, 0: multiply
};

// Copies rows: see RowCopy in plan/builder.h.
struct CopyRowsWork {
    Address in, out;
    Stride in_row, out_row;
    std::int64_t rows, width;
};

// Runs the time loop, or the steps of a piece. The units of a direction are divided into blocks of whole heads, which
// need nothing of each other. Weights are panels. The forward loop has panels for each direction, block and slot, with
// B = R of that slot. So does the backward loop, with B = R transposed; but without heads it has panels for each
// direction, with all slots along k. With an input weight, the forward loop also computes x W^T, and the view
// kProjected is the source.
struct LoopWork {
    Address live;              // the table of live_rows.h, if there are lengths
    Address input_weights[2];  // by direction: panels for each slot, with B = W of that slot
    // The weights in the caller's order. The forward loop reads them if there are no panels.
    Address weight_rows[2], input_weight_rows[2];
    abi::StepParams params;
    std::int64_t features;  // features that a unit reads if there is an input weight, else 0
    std::int64_t blocks, block_units;
    std::int64_t head_units, input_head_units;
    std::uint32_t adds_bias;  // 1: there is a bias
    // 1: step 0 has a recurrent product; backward, step -1 passes gradients on to the initial states
    std::uint32_t has_initial;
    std::uint32_t two_phases;  // 1: the candidate's product needs the results of the other gates
    std::uint32_t directions;
    std::uint32_t has_lengths;   // 1: there are lengths
    std::uint32_t packed_views;  // one bit per view, set if its sequence is packed
    std::uint32_t recurs;        // 1: there are recurrent products; 0: no unit needs another one
    std::uint32_t padding;
    // Steps, in the forward order, that belong to other pieces of the time axis: those before and after this one.
    std::int64_t steps_before, steps_after;
};

// One time step of one batch row, for cells with a single phase. Members mean the same as in LoopWork. The cell states
// are updated in place; the hidden state is not, because all units read it.
struct StepWork {
    Address source, hidden;  // of the step: [I], [H]
    // The weights are in an order of their own: [vector of units][k][gate][lane], gates in the cell's order.
    Address input_weights, weights, bias, vectors;
    Address hidden_before, cell;  // [H], [C, H]
    Address blend, blend_cell;    // the new states' parts; null without a blend
    Stride bias_slot, vectors_slot, blend_unit, blend_cell_unit;
    std::int64_t units, features;
    std::uint32_t adds_bias;
    // 1: from the last unit to the first. The weights that the last step used last are still in the caches.
    std::uint32_t back;
};

}  // namespace vkrnn::cpu
