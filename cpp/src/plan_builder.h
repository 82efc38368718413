// Assembles a plan: buffers, kernels, and the dispatches that no cell and no time step shapes (products, sums,
// transposes).
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>

#include "abi.h"
#include "vkrnn/plan.h"

namespace vkrnn {

// A matrix operand in a buffer. Element (i, k) is at offset + (columns ? k * ld + i : i * ld + k), all in elements.
struct Matrix {
    std::size_t buffer = 0;
    std::int64_t offset = 0;
    std::int64_t ld = 0;
    std::int64_t batch = 0;  // elements from one batch to the next
    bool columns = false;
    bool panels = false;  // packed by PlanBuilder::share_columns
};

// C(m, n) = sum over k of A(m, k) B(n, k), for each of `batches`. C is stored by rows.
struct Product {
    std::int64_t m = 0, n = 0, k = 0, batches = 1;
    Matrix a, b, c;
};

// out(d, g, j) = sum over rows of in(row, d, g, j) [* factor(row, d, g, j)]; out is contiguous.
struct RowSum {
    struct Operand {
        std::size_t buffer = 0;
        std::int64_t offset = 0, row = 0, direction = 0, gate = 0;  // strides in elements
    };
    std::int64_t rows = 0, directions = 1, gates = 1, width = 0;
    Operand in;
    std::optional<Operand> factor;
    std::size_t out = 0;
    std::int64_t out_offset = 0;
};

// Bytes of the largest buffer that is made a window: the alignment of a window is less than as many again.
inline constexpr std::uint64_t kLargestWindow = abi::kMostWindowBytes / 2;

class PlanBuilder {
public:
    PlanBuilder(const Spec& spec, const Profile& profile, const Flavour& flavour);

    // Buffer 0 is all zeros, H elements long: what an absent tensor reads.
    static constexpr std::size_t kZeros = 0;

    // Arguments and results, as the kernels see them: in 16-bit types a converted copy of what the caller sees.
    std::size_t input(Argument argument, std::int64_t elements);
    std::size_t result(std::string name, std::int64_t elements);
    // An argument of 32-bit integers.
    std::size_t integers(Argument argument, std::int64_t elements);
    std::size_t scratch(std::string name, std::int64_t elements);
    std::size_t constant(std::string name, Block contents);
    // Scratch for elements of another buffer in the order that the layout stands for; `fill` adds the dispatches that
    // copy them there. Where these are an input's that stays the same from call to call, they need not be copied in
    // each.
    std::size_t packed(std::string name, std::int64_t elements, std::size_t from, std::vector<std::int64_t> layout,
                       const std::function<void(std::size_t)>& fill);
    std::size_t kernel(std::string shader, std::vector<std::uint32_t> constants);

    // `independent`: needs nothing that the step before it wrote.
    // `bias`: where the n elements lie that each row's sums start from, if the flavour can do that: it says whether.
    bool product(const std::string& label, const Product& product, bool independent = false,
                 std::optional<Matrix> bias = {});
    // Of several products with one operand A, stored by columns: prepares it for all of them. Call it before the first,
    // which has all columns; in a batch of others each has its part of them.
    void share_columns(const std::string& label, std::initializer_list<Product*> products);
    void row_sum(const std::string& label, const RowSum& sum, bool independent = false);
    // The sum of so many contiguous parts of `columns` elements.
    void add_parts(const std::string& label, std::size_t from, std::int64_t parts, std::int64_t columns,
                   std::size_t out, std::int64_t out_offset);
    void transpose(const std::string& label, std::size_t in, std::size_t out, std::int64_t rows, std::int64_t columns,
                   std::int64_t batches, bool independent = false);
    void clear(std::size_t buffer) { plan_.steps.emplace_back(Clear{buffer}); }
    void add(Step step) { plan_.steps.push_back(std::move(step)); }
    void count_flops(double flops) { plan_.flops += flops; }

    // Whether products run in the broadcast flavour, which has no float64.
    [[nodiscard]] bool broadcasts() const;
    // The buffers as windows; none if one of them is too large.
    [[nodiscard]] std::vector<std::size_t> windows(std::vector<std::size_t> buffers) const;
    // As many zeros as any load of the broadcast flavour takes.
    std::size_t lane_zeros();
    [[nodiscard]] Place at(std::size_t buffer, std::int64_t element) const;
    void dispatch(const std::string& label, std::size_t kernel, std::array<std::uint32_t, 3> groups, Block push,
                  bool independent);

    // Spreads a linear number of workgroups over x and y.
    [[nodiscard]] std::array<std::uint32_t, 3> groups(std::int64_t linear, std::int64_t z = 1) const;

    [[nodiscard]] const Spec& spec() const { return plan_.spec; }
    [[nodiscard]] const Profile& profile() const { return profile_; }
    [[nodiscard]] const Flavour& flavour() const { return plan_.flavour; }
    Plan finish();

private:
    // A copy of a result that is still to be converted when everything else is done.
    struct Narrowing {
        std::size_t from, to;
        std::int64_t elements;
    };

    std::size_t add_buffer(std::string name, Role role, std::uint64_t bytes);
    [[nodiscard]] std::uint64_t bytes(std::int64_t elements) const;
    [[nodiscard]] std::uint64_t bytes_of_caller(std::int64_t elements) const;
    void convert(const std::string& label, std::size_t from, std::size_t to, std::int64_t elements, bool narrow,
                 bool independent);

    Plan plan_;
    const Profile& profile_;
    std::vector<Narrowing> narrowings_;
    std::optional<std::size_t> lane_zeros_;
};

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace vkrnn
