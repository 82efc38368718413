// Strategies on matrix units share this: operands as blocks of half-precision numbers.
#pragma once

#include "plan/strategy.h"

namespace vkrnn {

// Returns whether the device has matrix units that the kernels can use.
bool has_matrix_units(const Profile& profile);

// How many half-precision numbers each number of an operand is split into. Arguments of a 16-bit type need only one,
// and so do float32 numbers that may be rounded (Precision::tf32): a half has ten bits of mantissa.
struct Halves {
    std::int64_t left = 2, right = 2;

    // Returns how many products of halves are formed: all but that of two low halves, which is too small to count.
    [[nodiscard]] std::int64_t products() const { return left + right - 1; }
};
// Returns the halves of a time loop, which multiplies a state or deltas (left) by the weights (right). Tagged words
// always have two halves of the left operand: the tag takes a bit of the high one.
Halves loop_halves(const Spec& spec, bool tagged);

// Sets the specialization constants that all kernels on matrix units have.
void set_matrix_constants(std::vector<std::uint32_t>& constants, const Halves& halves, const Profile& profile);

// Returns the plan's buffer that tells where elements stand in blocks; the first call adds it.
std::size_t matrix_table(PlanBuilder& builder);

// add_largest() adds a buffer of `count` zeros for magnitudes. find_largest() adds the step that puts the largest
// magnitude of a buffer there; of a sequence it leaves out what is past the lengths. `fills` is that of Dispatch.
std::size_t add_largest(PlanBuilder& builder, const std::string& label, std::int64_t count,
                        std::size_t fills = kNoBuffer);
void find_largest(PlanBuilder& builder, const std::string& label, std::size_t of, bool sequence, std::size_t out,
                  std::int64_t at, std::size_t fills = kNoBuffer);

// Numbers that become an operand. `largest` has their largest magnitude; if it is kNoBuffer, packing finds it. The sums
// go over `runs` runs of `length` numbers each: number k of a run of row i stands at offset + batch * batch_stride +
// i * i_stride + run * run_stride + k * k_stride, all in elements.
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

// Adds the steps that make an operand's blocks, `i_blocks` of them with zeros past the ends, unless the plan has these
// blocks already. If the operand is an argument, its array keeps the blocks from call to call.
MatrixBlocks pack_blocks(PlanBuilder& builder, const std::string& label, const MatrixSource& source,
                         std::int64_t i_blocks);

}  // namespace vkrnn
