// Assembles a plan: buffers, kernels and steps.
#pragma once

#include <any>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <typeindex>

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
    bool sequence = false;  // whether its rows are the T N of a sequence: those past a length hold any finite numbers
};

// C(m, n) = sum over k of A(m, k) B(n, k), for each of `batches`. C is stored by rows.
struct Product {
    std::int64_t m = 0, n = 0, k = 0, batches = 1;
    Matrix a, b, c;
};

// out(d, g, j) = sum over rows of in(row, d, g, j) [* factor(row, d, g, j)]; out is contiguous.
struct RowSum {
    struct Term {
        std::size_t buffer = 0;
        std::int64_t offset = 0, row = 0, direction = 0, gate = 0;  // strides in elements
    };
    std::int64_t rows = 0, directions = 1, gates = 1, width = 0;
    Term in;
    std::optional<Term> factor;
    std::size_t out = 0;
    std::int64_t out_offset = 0;
};

// A copy of elements from a 16-bit type to float32, or the other way.
struct Conversion {
    std::size_t from = 0, to = 0;
    std::int64_t elements = 0;
    bool narrow = false;
};

class ProductStrategy;
struct Chosen;

class PlanBuilder {
public:
    PlanBuilder(const Spec& spec, const Profile& profile, const Chosen& chosen);

    // Buffer 0 is all zeros, H elements long: what an absent tensor reads.
    static constexpr std::size_t kZeros = 0;

    // Arguments and results, as the kernels see them: in 16-bit types a converted copy of what the caller sees. The
    // result that is named after an argument is its gradient.
    std::size_t input(Argument argument);
    std::size_t result(Output output);
    std::size_t result(Argument argument);
    std::size_t scratch(std::string name, std::int64_t elements);
    // Makes a scratch sequence whose rows have that many elements. With `live_only` and lengths it is packed, as in a
    // packed call: the rest of its memory is never touched.
    std::size_t scratch_sequence(std::string name, std::int64_t elements, bool live_only);
    // Returns whether a sequence, as kernels see it, is packed.
    [[nodiscard]] bool is_packed(std::size_t sequence) const {
        return plan_.spec.packed() || live_only_.contains(sequence);
    }
    // Returns the caller's buffer of an argument that the plan already has as an input.
    [[nodiscard]] std::size_t input_of(Argument argument) const;
    [[nodiscard]] const std::string& name_of_buffer(std::size_t buffer) const { return plan_.buffers.at(buffer).name; }
    // Returns whether the buffer's float32 numbers were widened from an argument of a 16-bit type.
    [[nodiscard]] bool is_widened(std::size_t buffer) const { return widened_.contains(buffer); }
    [[nodiscard]] std::uint64_t bytes_of(std::size_t buffer) const { return plan_.buffers.at(buffer).bytes; }
    // Returns the buffer that already has these contents, or a new one.
    std::size_t constant(std::string name, Block contents);
    // Makes a buffer for elements of `from` in another order, which `layout` stands for. Where `from` is an input, a
    // later call with the same array finds them there and need not copy them again. The dispatches that fill it say so.
    std::size_t packed(std::string name, std::int64_t elements, std::size_t from, std::vector<std::int64_t> layout,
                       bool optional = false);
    std::size_t kernel(std::string shader, std::vector<std::uint32_t> constants);

    // Add steps. An `independent` one may run beside the step before it. It still waits if it reads what that or
    // another one since the last wait made.
    void product(const std::string& label, const Product& product, bool independent = false);
    void row_sum(const std::string& label, const RowSum& sum, bool independent = false);
    // `fills` is that of Dispatch.
    void dispatch(const std::string& label, std::size_t kernel, std::array<std::uint32_t, 3> groups, Block push,
                  bool independent = false, std::size_t fills = kNoBuffer);
    void clear(std::size_t buffer, std::size_t fills = kNoBuffer);
    void add(Step step);
    void count_flops(double flops) { plan_.flops += flops; }
    // Notes that a step rounds the operands of a product, as the spec allows.
    void round_operands() { plan_.precision = Precision::tf32; }

    // Spreads a linear number of workgroups over x and y.
    [[nodiscard]] std::array<std::uint32_t, 3> groups(std::int64_t linear, std::int64_t z = 1) const;

    [[nodiscard]] Place at(std::size_t buffer, std::int64_t element) const;

    [[nodiscard]] const Spec& spec() const { return plan_.spec; }
    [[nodiscard]] const Profile& profile() const { return profile_; }
    // Returns the sizes of the strategies that run the call.
    [[nodiscard]] const Sizes& sizes() const { return plan_.choice.sizes; }
    // Returns what a strategy remembers while it plans, such as the buffers that it has already filled: an object of a
    // type of its own, made when it is first asked for.
    template <class Notes>
    [[nodiscard]] Notes& notes() {
        std::any& held = notes_[typeid(Notes)];
        if (!held.has_value()) held = Notes{};
        return *std::any_cast<Notes>(&held);
    }
    Plan finish();

private:
    std::size_t add_buffer(std::string name, Role role, std::uint64_t bytes);
    std::size_t add_result(std::string name, const TensorShape& shape);
    [[nodiscard]] std::uint64_t bytes(std::int64_t elements) const;
    [[nodiscard]] std::uint64_t bytes_of_caller(std::int64_t elements) const;
    // Returns whether a dispatch with these push constants must wait, and notes which buffers it makes.
    bool waits(const Block& push, bool independent);

    Plan plan_;
    const Profile& profile_;
    const ProductStrategy& products_;
    std::map<std::size_t, std::size_t> widened_;  // the inputs of which buffers are copies in float32
    std::set<std::size_t> live_only_;             // scratch sequences that are packed
    std::vector<Conversion> narrowings_;          // of results, to be done when all else is
    // Buffers that steps have used, of which the first one makes the buffer's contents; those made since the last wait.
    std::set<std::size_t> used_, fresh_;
    bool after_loop_ = false;
    std::map<std::type_index, std::any> notes_;
};

// Thrown if a number of a plan exceeds the 32 bits that kernels count in; make_plan then refuses the call.
struct TooLarge : std::length_error {
    using std::length_error::length_error;
};
std::uint32_t u32(std::int64_t value);  // throws TooLarge

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace vkrnn
