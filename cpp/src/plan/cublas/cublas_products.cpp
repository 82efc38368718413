#include "cublas_products.h"

#include <bit>
#include <map>
#include <numeric>

#include "plan/cost_table.h"
#include "plan/library_product.h"

namespace vkrnn {
namespace {

// The operations of a call's products from which on it is worth the events that order streams.
constexpr double kLargeProducts = 5e9;
// Every buffer begins at a multiple of this. More does not make the library's kernels faster.
constexpr std::uint64_t kBufferAlignment = 16;

// The copies of float32 buffers in the call's 16-bit type.
struct Narrowed {
    std::map<std::size_t, std::size_t> copies;
};

// Returns the alignment of the matrices of all batches, in bytes.
std::uint32_t alignment_of(const PlanBuilder& builder, const Matrix& matrix, std::int64_t batches) {
    const auto elements = static_cast<std::uint64_t>(std::gcd(matrix.offset, batches > 1 ? matrix.batch : 0));
    return static_cast<std::uint32_t>(std::gcd(kBufferAlignment, elements * builder.element_bytes(matrix.buffer)));
}

// Each for products that run one after the other.
struct Workspaces {
    std::optional<std::size_t> of_pieces, of_others;
};

// Returns the size of a product's workspace. The pieces of all lanes share what a call has. Products over all rows keep
// theirs: with a quarter of it, training of four LSTM layers of 128 units took 1.3 times as long in TF32.
std::uint32_t workspace_bytes(const PlanBuilder& builder, const Product& p) {
    return p.whole_m == 0 ? kLibraryWorkspace : kLibraryWorkspace / std::bit_ceil(u32(builder.spec().lanes));
}

std::size_t workspace_of(PlanBuilder& builder, const Product& p) {
    auto& all = builder.notes<Workspaces>();
    std::optional<std::size_t>& buffer = p.whole_m != 0 ? all.of_pieces : all.of_others;
    if (!buffer)
        buffer =
            builder.scratch("cublas workspace", workspace_bytes(builder, p) /
                                                    static_cast<std::int64_t>(compute_bytes(builder.spec().dtype)));
    return *buffer;
}

Dtype dtype_of(const PlanBuilder& builder, std::size_t buffer) {
    const Dtype dtype = builder.spec().dtype;
    return is_half(dtype) && !builder.is_16bit(buffer) ? Dtype::float32 : dtype;
}

}  // namespace

std::optional<CostEstimate> CublasProducts::estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                     const Parameters& /*wanted*/) const {
    if (!profile.product_library) return std::nullopt;
    const bool rounds = spec.precision == Precision::tf32;
    const ProductCosts& products = costs.products;
    const double rate = is_half(spec.dtype) ? products.half_library_flops_per_us
                        : rounds            ? products.library_flops_per_us
                                            : products.exact_library_flops_per_us;
    // With the accuracy of float32, the products of `matrices` are faster.
    return CostEstimate{
        (spec.gradients ? products.library_gradients : products.library_forward) + product_flops(spec) / rate,
        {},
        spec.dtype == Dtype::float32 && !rounds};
}

bool CublasProducts::runs_beside(const Spec& spec) const { return product_flops(spec) >= kLargeProducts; }

// Returns an operand in the type of the call's arguments, because the library multiplies numbers of one type. That is
// the matrix itself, or the same elements of a copy, which a plan makes once: as a whole, or some rows for each part of
// a product.
Matrix CublasProducts::operand(PlanBuilder& builder, const Matrix& matrix, std::int64_t part_rows) const {
    if (!is_half(builder.spec().dtype) || builder.is_16bit(matrix.buffer)) return matrix;
    const auto [copy, is_new] = builder.notes<Narrowed>().copies.emplace(matrix.buffer, kNoBuffer);
    const std::string name = builder.name_of_buffer(matrix.buffer);
    const std::int64_t elements = builder.count_of(matrix.buffer);
    if (is_new) copy->second = builder.scratch_16bit(name + " in 16 bits", elements);
    Conversion narrowing{matrix.buffer, copy->second, elements, true};
    if (part_rows != 0) {
        narrowing.elements = part_rows * matrix.ld;
        narrowing.offset = matrix.offset;
    }
    if (is_new || part_rows != 0) convert(builder, "narrow " + name, narrowing, true);
    Matrix narrowed = matrix;
    narrowed.buffer = copy->second;
    return narrowed;
}

void CublasProducts::product(PlanBuilder& builder, const std::string& label, const Product& p, bool independent) const {
    const Matrix a = operand(builder, p.a, p.whole_m != 0 ? p.m : 0), b = operand(builder, p.b, 0);
    const bool rounds = builder.spec().precision == Precision::tf32;

    LibraryProduct work{};
    work.a = builder.at(a.buffer, a.offset);
    work.b = builder.at(b.buffer, b.offset);
    work.c = builder.at(p.c.buffer, p.c.offset);
    work.workspace = builder.at(workspace_of(builder, p), 0);
    work.m = p.m;
    work.n = p.n;
    work.k = p.k;
    work.batches = p.batches;
    work.a_ld = p.a.ld;
    work.b_ld = p.b.ld;
    work.c_ld = p.c.ld;
    work.a_batch = p.a.batch;
    work.b_batch = p.b.batch;
    work.c_batch = p.c.batch;
    work.a_alignment = alignment_of(builder, a, p.batches);
    work.b_alignment = alignment_of(builder, b, p.batches);
    work.c_alignment = alignment_of(builder, p.c, p.batches);
    work.workspace_bytes = workspace_bytes(builder, p);
    work.whole_m = p.whole().m;
    Constants constants;
    constants.flag(kAColumns, "a_columns", p.a.columns)
        .flag(kBColumns, "b_columns", p.b.columns)
        .set(kOperandDtype, "operands", static_cast<std::uint32_t>(builder.spec().dtype), Constants::As::dtype)
        .set(kResultDtype, "result", static_cast<std::uint32_t>(dtype_of(builder, p.c.buffer)), Constants::As::dtype)
        .flag(kRoundsOperands, "tf32", rounds);
    builder.dispatch(label, builder.kernel(std::string(kLibraryProduct), std::move(constants)), {0, 0, 0},
                     make_block(work), independent);
}

}  // namespace vkrnn
