#include "cublas_products.h"

#include <map>
#include <numeric>

#include "library_product.h"

namespace vkrnn {
namespace {

// Every buffer begins at a multiple of this. More does not make the library's kernels faster.
constexpr std::uint64_t kBufferAlignment = 16;

// How the library computes a call's products. Both operands have one type. The numbers of float16 and bfloat16 have no
// more than ten bits of mantissa, so rounding their float32 copies changes nothing.
struct Computation {
    Dtype dtype;  // of both operands
    bool rounds;  // whether they are rounded to ten bits of mantissa if they are float32
};

Computation computation_of(const PlanBuilder& builder, const Product& p) {
    const Spec& spec = builder.spec();
    if (!is_half(spec.dtype)) return {spec.dtype, spec.precision == Precision::tf32};
    const bool as_stored = builder.is_16bit(p.a.buffer) && builder.is_16bit(p.b.buffer);
    return as_stored ? Computation{spec.dtype, false} : Computation{Dtype::float32, true};
}

// The float32 copies of buffers in a 16-bit type.
struct Widened {
    std::map<std::size_t, std::size_t> copies;
};

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
    const Matrix a = is_half(dtype) ? p.a : widened(builder, p.a), b = is_half(dtype) ? p.b : widened(builder, p.b);
    // The library stores float32. Another step rounds it if the result is in a 16-bit type.
    const bool narrows = builder.is_16bit(p.c.buffer);
    const std::int64_t size = p.m * p.n;
    Matrix c = p.c;
    if (narrows) c = {builder.scratch(label + " in float32", p.batches * size), 0, p.n, size, false};
    if (a.buffer != p.a.buffer || b.buffer != p.b.buffer) independent = false;

    LibraryProduct work{};
    work.a = builder.at(a.buffer, a.offset);
    work.b = builder.at(b.buffer, b.offset);
    work.c = builder.at(c.buffer, c.offset);
    work.workspace = builder.at(workspace_of(builder), 0);
    work.m = p.m;
    work.n = p.n;
    work.k = p.k;
    work.batches = p.batches;
    work.a_ld = p.a.ld;
    work.b_ld = p.b.ld;
    work.c_ld = c.ld;
    work.a_batch = p.a.batch;
    work.b_batch = p.b.batch;
    work.c_batch = c.batch;
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
    if (!narrows) return;
    for (std::int64_t batch = 0; batch < p.batches; ++batch) {
        RowSum copy{
            1, 1, 1, size, {c.buffer, batch * size, size, 0, 0}, {}, p.c.buffer, p.c.offset + batch * p.c.batch};
        row_sum(builder, "narrow " + label, copy, batch > 0);
    }
}

// Returns a matrix in float32: itself, or the same elements of a copy, which a plan makes once.
Matrix CublasProducts::widened(PlanBuilder& builder, Matrix matrix) const {
    if (!builder.is_16bit(matrix.buffer)) return matrix;
    const auto [found, is_new] = builder.notes<Widened>().copies.emplace(matrix.buffer, kNoBuffer);
    if (is_new) {
        const std::string name = builder.name_of_buffer(matrix.buffer);
        const std::int64_t elements = builder.count_of(matrix.buffer);
        const std::size_t copy = builder.scratch(name + " in float32", elements);
        found->second = copy;
        convert(builder, "widen " + name, {matrix.buffer, copy, elements, false}, true);
    }
    matrix.buffer = found->second;
    return matrix;
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
