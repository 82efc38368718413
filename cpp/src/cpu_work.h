// What the CPU's kernels are told: one struct each, that stands in a Dispatch and whose places come first. Strides and
// leading dimensions are in elements.
#pragma once

#include <cstdint>

#include "abi.h"

namespace vkrnn::cpu {

using abi::Address;
using abi::Stride;

// Makes the table of live_rows.h, of 64-bit integers, from the lengths of N batch rows.
struct OrderWork {
    Address lengths, out;
    std::int64_t T, N;
    std::uint32_t lines, padding;  // 1: with lines
};
inline constexpr std::uint32_t kOrderPlaces = 2;

// Elements of that table.
constexpr std::int64_t live_rows_elements(std::int64_t T, std::int64_t N, bool lines) {
    return 2 * N + T + 1 + (lines ? T * N : 0);
}

// What of a product or sum runs over the rows of sequences, where there are lengths. It then leaves out all but the
// live rows. Sequences that are not packed have them at the table's lines.
struct LiveWork {
    std::int64_t T, N;      // 0 where there are no lengths
    std::uint32_t a, b, c;  // 1: this operand's rows are at the lines
    std::uint32_t along_k;  // 1: the rows are along k, 0: along m
};

// Writes a matrix B(n, k), for each of `batches`, as panels: out[n / lanes][k][n % lanes], zeros where there is no n.
struct PackWork {
    Address in, out;
    Stride in_n, in_k, in_batch;
    std::int64_t n, k, batches;
};
inline constexpr std::uint32_t kPackPlaces = 2;

// Elements of such panels.
constexpr std::int64_t panel_elements(std::int64_t n, std::int64_t k, std::int64_t batches, std::int64_t lanes) {
    return (n + lanes - 1) / lanes * lanes * k * batches;
}

// C(m, n) = sum over k of A(m, k) B(n, k), for each of `batches`. Rows of C are contiguous. B is packed for all
// threads, a part of k at a time, in memory for product_elements(). Where C's rows are at lines, its others are
// cleared.
struct ProductWork {
    Address a, b, c, packed, live;
    Stride a_m, a_k, a_batch;
    Stride b_n, b_k, b_batch;
    Stride c_m, c_batch;
    std::int64_t m, n, k, batches;
    LiveWork of_live;
};
inline constexpr std::uint32_t kProductPlaces = 5;
inline constexpr std::int64_t kPackedDepth = 4096;
constexpr std::int64_t product_elements(std::int64_t n, std::int64_t k, std::int64_t lanes) {
    return panel_elements(n, k < kPackedDepth ? k : kPackedDepth, 1, lanes);
}

// out(d, g, j) = sum over rows of in(row, d, g, j) [* factor(row, d, g, j)]; out is contiguous.
struct SumWork {
    Address in, factor, out, live;
    Stride in_row, in_direction, in_gate;
    Stride factor_row, factor_direction, factor_gate;
    std::int64_t rows, directions, gates, width;
    LiveWork of_live;  // a: in; the factor is packed
    std::uint32_t has_factor, padding;
};
inline constexpr std::uint32_t kSumPlaces = 4;

// Between float32 and a 16-bit type.
struct ConvertWork {
    Address in, out;
    std::int64_t count;
    std::uint32_t bfloat, narrow;  // 1: bfloat16, else float16; 1: from float32, else to it
};
inline constexpr std::uint32_t kConvertPlaces = 2;

// The whole time loop. The weights are panels: forward those of each direction and slot, B = R of that slot; backward
// those of each direction, B = R transposed, all slots along k. With an input weight the forward loop forms x W^T too:
// kProjected is then the source.
struct LoopWork {
    Address live;              // the table of live_rows.h, where there are lengths
    Address input_weights[2];  // by direction: panels of each slot, B = W of that slot
    // The same as the caller has them, which the forward loop reads where there are no panels.
    Address weight_rows[2], input_weight_rows[2];
    abi::StepParams params;
    std::int64_t features;      // of the source, with an input weight; else 0
    std::uint32_t adds_bias;    // 1: there is a bias
    std::uint32_t has_initial;  // 1: there is an initial state
    std::uint32_t two_phases;   // 1: the candidate's product multiplies what the other gates have formed
    std::uint32_t directions;
    std::uint32_t has_lengths;   // 1: there are lengths
    std::uint32_t packed_views;  // a bit for each view of a packed sequence
};
inline constexpr std::uint32_t kLoopPlaces = 7 + abi::kStepPlaces;

// One time step of one batch row in a single phase, in the terms of LoopWork. The cell states are updated in place;
// the hidden state is not, because all units read it.
struct StepWork {
    Address source, hidden;  // of the step: [I], [H]
    Address input_weights, weights, bias, vectors;
    Address hidden_before, cell;  // [H], [C, H]
    Stride bias_slot, vectors_slot;
    std::int64_t units, features;
    std::uint32_t adds_bias;
    std::uint32_t back;  // 1: from the last units to the first, which finds in the caches what the last step used last
};

}  // namespace vkrnn::cpu
