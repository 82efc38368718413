// What the strategies on matrix units share: operands as blocks of half-precision numbers.
#pragma once

#include "plan/strategy.h"

namespace vkrnn {

// Whether the device has matrix units of which the kernels know how they are used.
bool has_matrix_units(const Profile& profile);

// How many halves the numbers of an operand are split into: those of a 16-bit type's arguments are halves themselves.
struct Halves {
    std::int64_t left = 2, right = 2;

    // Products of their halves that count.
    [[nodiscard]] std::int64_t products() const { return left + right - 1; }
};
// Of a time loop, whose left operand is a state or deltas, and whose right one are the weights.
Halves loop_halves(const Spec& spec);

// Specialization constants that all kernels on matrix units have.
void set_matrix_constants(std::vector<std::uint32_t>& constants, const Halves& halves, const Profile& profile);

// A buffer with the places of elements in blocks; one for a plan.
std::size_t matrix_table(PlanBuilder& builder);

// A buffer of `count` zeros for magnitudes, and steps that find the largest of a buffer's numbers; of a sequence's, but
// for those past the lengths. `fills`: as Dispatch has it.
std::size_t add_largest(PlanBuilder& builder, const std::string& label, std::int64_t count,
                        std::size_t fills = kNoBuffer);
void find_largest(PlanBuilder& builder, const std::string& label, std::size_t of, bool sequence, std::size_t out,
                  std::int64_t at, std::size_t fills = kNoBuffer);

// Numbers that become an operand. `largest` has their largest magnitude; kNoBuffer where packing is to find it. Element
// (i, k) of a batch stands at offset + batch * batch_stride + i * i_stride + k
// * k_stride, all in elements, where k counts in runs of `length`, `run` elements apart.
struct MatrixSource {
    std::size_t buffer = 0, largest = kNoBuffer;
    std::int64_t offset = 0, batches = 1, batch_stride = 0;
    std::int64_t i_count = 0, i_stride = 0;
    std::int64_t runs = 1, length = 0, k_stride = 0, run_stride = 0;
    // Columns of a step's tiles: `columns` of them in each, of which units x products are there.
    struct Interleaved {
        std::int64_t units = 0, columns = 0, products = 0, slot_stride = 0;
        std::uint32_t gate_order = 0;
    };
    Interleaved tiles = {};
    bool right = false;
};

// An operand as blocks.
struct MatrixBlocks {
    std::size_t buffer = 0;
    std::int64_t first = 0;  // element of four bytes at which they begin; a right operand's header is at 0
    std::int64_t halves = 2;
    std::int64_t k_blocks = 0;
    std::int64_t batch_vectors = 0;  // 16-byte vectors from one batch to the next
};

// Adds the steps that make an operand's blocks, unless the plan has them: `i_blocks` of them, zeros past the ends.
// Those of an argument stay with an array from call to call.
MatrixBlocks pack_blocks(PlanBuilder& builder, const std::string& label, const MatrixSource& source,
                         std::int64_t i_blocks);

}  // namespace vkrnn
