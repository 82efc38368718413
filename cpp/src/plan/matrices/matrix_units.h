// Shared by the strategies on matrix units: operands as blocks of half-precision numbers.
#pragma once

#include "matrices/matrices_abi.h"
#include "plan/strategy.h"

namespace vkrnn {

constexpr std::int64_t kVectorBytes = 16;  // of a block that an invocation holds

// Returns whether the device has matrix units that the kernels can use.
bool has_matrix_units(const Profile& profile);

// Returns whether products round their operands to half precision, which has eleven significant bits: float32 numbers
// that may be rounded (Precision::tf32), and the states and deltas of calls in a 16-bit type. Arguments in float16 are
// exact in half precision, and so are those in bfloat16 that its range covers, given the absmax of their matrix.
bool rounds_operands(const Spec& spec);

// How many half-precision numbers represent each number of an operand: one if operands are rounded, else two (a hi/lo
// split).
struct Parts {
    std::int64_t left = 2, right = 2;

    // Returns how many products of two parts are computed: all but lo * lo, which is negligible.
    [[nodiscard]] std::int64_t products() const { return left + right - 1; }
};
// Returns the parts of a time loop, which multiplies a state or deltas (left) by the weights (right).
Parts loop_parts(const Spec& spec);

// Sets the specialization constants that all kernels on matrix units have.
void set_matrix_constants(Constants& constants, const Parts& parts, const Profile& profile);

// Returns the buffer with the positions of elements in blocks. The first call adds it to the plan.
std::size_t matrix_table(PlanBuilder& builder);

// add_absmax() adds a buffer of `count` zeros for absmax values. compute_absmax() adds the step that writes the absmax
// of a buffer there; for a sequence, it skips the rows past the lengths. `fills`: see Dispatch.
std::size_t add_absmax(PlanBuilder& builder, const std::string& label, std::int64_t count,
                       std::size_t fills = kNoBuffer);
void compute_absmax(PlanBuilder& builder, const std::string& label, std::size_t of, bool sequence, std::size_t out,
                    std::int64_t at, std::size_t fills = kNoBuffer);
// The same for a part of a sequence, whose rows have `row` elements.
void compute_absmax(PlanBuilder& builder, const std::string& label, std::size_t of, const TimeRows& rows,
                    std::int64_t row, std::size_t out, std::int64_t at);

// The numbers that become an operand. `absmax` is the buffer with their absmax; if it is kNoBuffer, packing computes
// it. Products sum over `runs` runs of `length` numbers each. Number k of a run of row i is at offset + batch *
// batch_stride + head * head_stride + i * i_stride + run * run_stride + k * k_stride, all in elements.
struct MatrixSource {
    std::size_t buffer = 0, absmax = kNoBuffer;
    std::int64_t absmax_at = 0;  // element of `absmax`
    std::int64_t offset = 0, batches = 1, batch_stride = 0, heads = 1, head_stride = 0;
    std::int64_t i_count = 0, i_stride = 0;
    std::int64_t runs = 1, length = 0, k_stride = 0, run_stride = 0;
    // The columns of a step's tiles: each tile has `columns`, of which units * products are used.
    struct Interleaved {
        std::int64_t units = 0, columns = 0, products = 0, slot_stride = 0;
        std::uint32_t gate_order = 0;
    };
    Interleaved tiles = {};
    bool right = false;
    bool part = false;  // whether the numbers are a part of a sequence; the blocks of all its parts share memory
};

// An operand as blocks.
struct MatrixBlocks {
    std::size_t buffer = 0;
    std::int64_t first = 0;  // 4-byte element at which they begin; a right operand has a header at 0
    std::int64_t parts = 2;
    std::int64_t k_blocks = 0;
    std::int64_t batch_vectors = 0;  // 16-byte vectors from one batch to the next
};

// Adds the steps that pack an operand into blocks, `i_blocks` of them along i with zeros past the ends, unless the plan
// already has these blocks. If the operand is an argument without `absmax`, its array keeps the blocks from call to
// call.
MatrixBlocks pack_blocks(PlanBuilder& builder, const std::string& label, const MatrixSource& source,
                         std::int64_t i_blocks);

}  // namespace vkrnn
