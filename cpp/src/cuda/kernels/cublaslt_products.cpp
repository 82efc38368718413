#include "cuda/kernels/cublaslt_products.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace vkrnn::cuda {
namespace {

namespace lt = cublas;

// How many algorithms the library proposes. The first that fits is usually the very first.
constexpr int kMostProposed = 16;

std::uint32_t constant(const Kernel& kernel, LibraryConstant number) {
    return number < kernel.constants.size() ? kernel.constants[number] : 0;
}

Dtype dtype_of(const Kernel& kernel, LibraryConstant number) { return static_cast<Dtype>(constant(kernel, number)); }

lt::DataType type_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::float32: return lt::DataType::float32;
        case Dtype::float64: return lt::DataType::float64;
        case Dtype::float16: return lt::DataType::float16;
        case Dtype::bfloat16: return lt::DataType::bfloat16;
    }
    throw std::logic_error("a type that cuBLASLt does not have");
}

bool is_double(const Kernel& kernel) { return dtype_of(kernel, kResultDtype) == Dtype::float64; }

lt::ComputeType compute_type(const Kernel& kernel) {
    if (is_double(kernel)) return lt::ComputeType::float64;
    return constant(kernel, kRoundsOperands) != 0 ? lt::ComputeType::tf32 : lt::ComputeType::float32;
}

bool is_in_order(const lt::Algorithm& algorithm) {
    lt::Reduction reduction{};
    std::size_t written = 0;
    lt::check(lt::functions().MatmulAlgoConfigGetAttribute(&algorithm, lt::AlgorithmAttribute::reduction, &reduction,
                                                           sizeof reduction, &written));
    return reduction == lt::Reduction::none || reduction == lt::Reduction::compute_type;
}

}  // namespace

// A matrix of the library, which stores columns.
struct Products::Layout : lt::Owned<lt::MatrixLayout> {
    Layout(std::int64_t rows, std::int64_t columns, std::int64_t ld, std::int64_t batches, std::int64_t batch,
           Dtype dtype)
        : Owned(lt::functions().MatrixLayoutCreate, lt::functions().MatrixLayoutDestroy, type_of(dtype),
                static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), ld) {
        const auto set_one = lt::functions().MatrixLayoutSetAttribute;
        set(set_one, lt::LayoutAttribute::batches, static_cast<std::int32_t>(batches));
        set(set_one, lt::LayoutAttribute::batch_stride, batch);
    }
};

// The library computes C^T = B A^T, because it stores columns where plans store rows. Its left operand is B.
struct Products::Matmul {
    Matmul(lt::Handle handle, const Kernel& kernel, const LibraryProduct& p)
        : b_columns(constant(kernel, kBColumns) != 0),
          a_columns(constant(kernel, kAColumns) != 0),
          doubles(is_double(kernel)),
          desc(lt::functions().MatmulDescCreate, lt::functions().MatmulDescDestroy, compute_type(kernel),
               doubles ? lt::DataType::float64 : lt::DataType::float32),
          left(b_columns ? p.n : p.k, b_columns ? p.k : p.n, p.b_ld, p.batches, p.b_batch,
               dtype_of(kernel, kOperandDtype)),
          right(a_columns ? p.m : p.k, a_columns ? p.k : p.m, p.a_ld, p.batches, p.a_batch,
                dtype_of(kernel, kOperandDtype)),
          result(p.n, p.m, p.c_ld, p.batches, p.c_batch, dtype_of(kernel, kResultDtype)) {
        const auto set_one = lt::functions().MatmulDescSetAttribute;
        desc.set(set_one, lt::DescAttribute::transpose_a, b_columns ? lt::Operation::none : lt::Operation::transpose);
        desc.set(set_one, lt::DescAttribute::transpose_b, a_columns ? lt::Operation::transpose : lt::Operation::none);
        // Parts of a product have the algorithm of the whole, and so its bits, unless the library refuses that.
        if (p.whole_m != p.m) algorithm = Matmul(handle, kernel, whole(p)).algorithm;
        if (p.whole_m == p.m || !runs(handle, p)) choose(handle, p);
    }

    // Returns whether the library can run the algorithm.
    [[nodiscard]] bool runs(lt::Handle handle, const LibraryProduct& p) const {
        lt::HeuristicResult found{};
        return lt::functions().MatmulAlgoCheck(handle, desc.get(), left.get(), right.get(), result.get(), result.get(),
                                               &algorithm, &found) == lt::kSuccess &&
               found.workspace_bytes <= p.workspace_bytes;
    }

    static LibraryProduct whole(LibraryProduct p) {
        p.m = p.whole_m;
        return p;
    }

    // Chooses the first algorithm that the library proposes and that adds in the same order every time.
    void choose(lt::Handle handle, const LibraryProduct& p) {
        const lt::Functions& all = lt::functions();
        const lt::Owned<lt::Preference> preference(all.MatmulPreferenceCreate, all.MatmulPreferenceDestroy);
        const auto set = [&](lt::PreferenceAttribute attribute, const auto& value) {
            preference.set(all.MatmulPreferenceSetAttribute, attribute, value);
        };
        set(lt::PreferenceAttribute::workspace_bytes, std::uint64_t{p.workspace_bytes});
        set(lt::PreferenceAttribute::reductions, lt::Reduction::compute_type);
        set(lt::PreferenceAttribute::alignment_a, p.b_alignment);
        set(lt::PreferenceAttribute::alignment_b, p.a_alignment);
        set(lt::PreferenceAttribute::alignment_c, p.c_alignment);
        set(lt::PreferenceAttribute::alignment_d, p.c_alignment);
        std::array<lt::HeuristicResult, kMostProposed> proposed{};
        int count = 0;
        lt::check(all.MatmulAlgoGetHeuristic(handle, desc.get(), left.get(), right.get(), result.get(), result.get(),
                                             preference.get(), kMostProposed, proposed.data(), &count));
        const auto usable = std::span(proposed).first(static_cast<std::size_t>(count));
        const auto found = std::ranges::find_if(usable, [&](const lt::HeuristicResult& each) {
            return each.state == lt::kSuccess && each.workspace_bytes <= p.workspace_bytes &&
                   is_in_order(each.algorithm);
        });
        if (found == usable.end())
            throw LibraryError{"cuBLASLt has no algorithm for a product of " + std::to_string(p.m) + " x " +
                               std::to_string(p.n) + " x " + std::to_string(p.k)};
        algorithm = found->algorithm;
    }

    const bool b_columns, a_columns, doubles;
    const lt::Owned<lt::MatmulDesc> desc;
    const Layout left, right, result;
    lt::Algorithm algorithm{};
};

Products::Products() = default;

Products::~Products() {
    matmuls_.clear();
    if (handle_ != lt::Handle{} && driver_to_clean_up() != nullptr) lt::functions().Destroy(handle_);
}

Products::Bound Products::bind(const Kernel& kernel, std::span<const std::byte> bytes) {
    LibraryProduct work{};
    if (bytes.size() < sizeof work) throw std::logic_error("a product of the library without its parameters");
    std::memcpy(&work, bytes.data(), sizeof work);
    return {&matmul(kernel, work), work};
}

void Products::run(const Bound& bound, Stream stream) const {
    const auto& [found, work] = bound;
    const Matmul& product = *found;
    const std::array<float, 2> factors{1, 0};
    const std::array<double, 2> double_factors{1, 0};
    const void* const one = product.doubles ? static_cast<const void*>(double_factors.data()) : factors.data();
    const void* const zero = product.doubles ? static_cast<const void*>(&double_factors[1]) : &factors[1];
    lt::check(lt::functions().Matmul(handle_, product.desc.get(), one, work.b, product.left.get(), work.a,
                                     product.right.get(), zero, work.c, product.result.get(), work.c,
                                     product.result.get(), &product.algorithm, work.workspace, work.workspace_bytes,
                                     stream));
}

const Products::Matmul& Products::matmul(const Kernel& kernel, const LibraryProduct& work) {
    LibraryProduct shape = work;
    shape.a = shape.b = shape.c = shape.workspace = 0;
    const auto bytes = std::as_bytes(std::span(&shape, 1));
    Key key{kernel.constants, {bytes.begin(), bytes.end()}};
    const lt::Functions& all = lt::functions();  // opened before the lock
    const std::lock_guard lock(mutex_);
    if (handle_ == lt::Handle{}) lt::check(all.Create(&handle_));
    std::unique_ptr<const Matmul>& found = matmuls_[std::move(key)];
    if (!found) found = std::make_unique<const Matmul>(handle_, kernel, work);
    return *found;
}

}  // namespace vkrnn::cuda
