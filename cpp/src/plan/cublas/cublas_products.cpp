#include "cublas_products.h"

#include <numeric>

#include "library_product.h"

namespace vkrnn {
namespace {

// Every buffer begins at a multiple of this. More does not make the library's kernels faster.
constexpr std::uint64_t kBufferAlignment = 16;

// How the library computes a call's products. The numbers of float16 and bfloat16 have no more than ten bits of
// mantissa, so rounding their float32 copies changes nothing.
struct Computation {
    Dtype dtype;  // of both operands
    bool rounds;  // whether they are rounded to ten bits of mantissa if they are float32
};

Computation computation_of(const PlanBuilder& builder, const Product& p) {
    const Spec& spec = builder.spec();
    if (!is_half(spec.dtype)) return {spec.dtype, spec.precision == Precision::tf32};
    const bool as_stored = builder.is_widened(p.a.buffer) && builder.is_widened(p.b.buffer);
    return as_stored ? Computation{spec.dtype, false} : Computation{Dtype::float32, true};
}

// Returns the reference to a matrix's first element of a type.
BufferReference reference_of(const PlanBuilder& builder, const Matrix& matrix, Dtype dtype) {
    const std::size_t buffer = is_half(dtype) ? builder.stored(matrix.buffer) : matrix.buffer;
    return reference_to(buffer, static_cast<std::uint64_t>(matrix.offset) * storage_bytes(dtype));
}

std::uint32_t alignment_of(BufferReference at) {
    return static_cast<std::uint32_t>(std::gcd(kBufferAlignment, referenced_offset(at)));
}

struct Workspace {
    std::optional<std::size_t> buffer;  // one for all products, which run one after the other
};

std::size_t workspace_of(PlanBuilder& builder) {
    std::optional<std::size_t>& buffer = builder.notes<Workspace>().buffer;
    if (!buffer)
        buffer =
            builder.scratch("cublas workspace", std::int64_t{kLibraryWorkspace} /
                                                    static_cast<std::int64_t>(compute_bytes(builder.spec().dtype)));
    return *buffer;
}

}  // namespace

std::optional<Offer> CublasProducts::offer(const Spec& spec, const Profile& profile, const Costs& costs,
                                           const Sizes& /*wanted*/) const {
    if (!profile.product_library) return std::nullopt;
    const bool rounds = spec.precision == Precision::tf32 || is_half(spec.dtype);
    const Costs::Products& products = costs.products;
    const double rate = rounds ? products.library_flops_per_us : products.exact_library_flops_per_us;
    // With the accuracy of float32, the products of `matrices` are faster.
    return Offer{(spec.gradients ? products.library_gradients : products.library_forward) + product_flops(spec) / rate,
                 {},
                 spec.dtype == Dtype::float32 && !rounds};
}

void CublasProducts::product(PlanBuilder& builder, const std::string& label, const Product& p, bool independent) const {
    const auto [dtype, rounds] = computation_of(builder, p);
    const Dtype result = dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
    if (rounds && builder.spec().dtype == Dtype::float32) builder.round_operands();

    LibraryProduct work{};
    work.a = reference_of(builder, p.a, dtype);
    work.b = reference_of(builder, p.b, dtype);
    work.c = reference_of(builder, p.c, result);
    work.workspace = builder.at(workspace_of(builder), 0);
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
    work.a_alignment = alignment_of(work.a);
    work.b_alignment = alignment_of(work.b);
    work.c_alignment = alignment_of(work.c);
    work.workspace_bytes = kLibraryWorkspace;
    Constants constants;
    constants.flag(kAColumns, "a_columns", p.a.columns)
        .flag(kBColumns, "b_columns", p.b.columns)
        .set(kOperandDtype, "operands", static_cast<std::uint32_t>(dtype), Constants::As::dtype)
        .set(kResultDtype, "result", static_cast<std::uint32_t>(result), Constants::As::dtype)
        .flag(kRoundsOperands, "tf32", rounds);
    builder.dispatch(label, builder.kernel(std::string(kLibraryProduct), std::move(constants)), {0, 0, 0},
                     make_block(work), independent);
}

void CublasProducts::row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum,
                             bool independent) const {
    tiled_.row_sum(builder, label, sum, independent);
}

void CublasProducts::convert(PlanBuilder& builder, const std::string& label, const Conversion& conversion,
                             bool independent) const {
    tiled_.convert(builder, label, conversion, independent);
}

}  // namespace vkrnn
