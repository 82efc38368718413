// Assembles a plan: buffers, kernels and steps.
#pragma once

#include <any>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <typeindex>

#include "constants.h"

namespace vkrnn {

// Rows [begin, end) of the time axis.
struct TimeRows {
    std::int64_t begin, end;
};

// Returns the rows of a piece, in source order. A gradient call begins with the last rows.
TimeRows rows_of_piece(const Spec& spec, std::int64_t piece);

// A matrix operand in a buffer. Element (i, k) is at offset + (columns ? k * ld + i : i * ld + k), all in elements.
struct Matrix {
    std::size_t buffer = 0;
    std::int64_t offset = 0;
    std::int64_t ld = 0;
    std::int64_t batch = 0;  // elements from one batch to the next
    bool columns = false;
    bool sequence = false;  // its rows are the T N rows of a sequence; rows past a length hold any finite numbers
    std::int64_t set = 0;   // elements from one set of batches to the next
};

// C(m, n) = sum over k of A(m, k) B(n, k), for each of `batches` in each of `sets`. C is stored by rows.
struct Product {
    std::int64_t m = 0, n = 0, k = 0, batches = 1;
    Matrix a{}, b{}, c{};
    std::int64_t sets = 1;
    // If this is a part of a product, the rows of the whole. Strategies choose tiles and algorithms for the whole, so
    // that the parts have its bits.
    std::int64_t whole_m = 0;

    [[nodiscard]] Product whole() const {
        Product found = *this;
        if (whole_m != 0) found.m = whole_m;
        return found;
    }
};

// Returns the part of a product whose rows are those of a sequence, for some rows of the time axis.
Product part_of(const Product& product, const TimeRows& rows, std::int64_t N);

// out(d, g, j) = sum over rows of in(row, d, g, j) [* factor(row, d, g, j)]; out is contiguous.
struct RowSum {
    struct Term {
        std::size_t buffer = 0;
        std::int64_t offset = 0, row = 0, direction = 0, gate = 0;  // strides in elements
    };
    std::int64_t rows = 0, directions = 1, gates = 1, width = 0;
    Term in{};
    std::optional<Term> factor{};
    std::size_t out = 0;
    std::int64_t out_offset = 0;
    bool sequence = true;  // whether the rows are those of a sequence: see Matrix
};

// Copies the states after each direction's last step to `out`, from a sequence [T, N, D width] whose rows are in output
// order. A batch row of length 0 gets its initial state, or zeros. States have the layout of the call.
struct LastRows {
    std::size_t sequence = 0, out = 0;
    std::int64_t width = 0;              // elements of one direction
    std::size_t lengths = kZerosBuffer;  // [N] integers; kZerosBuffer: all rows have T steps
    std::size_t initial = kZerosBuffer;  // kZerosBuffer: zeros
};

// out(i) = a(i) b(i), or a(i) + b(i); but a(i) alone where i % period >= limit.
struct Combination {
    enum Operation : std::uint8_t { multiply, add };
    std::size_t a = 0, b = 0, out = 0;
    std::int64_t elements = 0;
    Operation operation = multiply;
    std::int64_t limit = elements, period = elements;
    std::int64_t offset = 0;  // of the first element in all three

    void limit_to(std::int64_t first, std::int64_t of) { limit = first, period = of; }
};

// A copy of rows of `width` elements between two tensors, whose rows may be further apart.
struct RowCopy {
    struct Place {
        std::size_t buffer = 0;
        std::int64_t offset = 0, row = 0;  // in elements; the source's `row` may be 0
    };
    Place from, to;
    std::int64_t rows = 0, width = 0;
};

// A copy of elements from a 16-bit type to float32, or back if `narrow`; from bytes if `from_bool`: 0 where the byte is
// not 0, and 1 elsewhere, in the type in which the call computes.
struct Conversion {
    std::size_t from = 0, to = 0;
    std::int64_t elements = 0;
    bool narrow = false, from_bool = false;
    std::int64_t offset = 0;  // of the first element in both
};

class ProductStrategy;
struct Chosen;

class PlanBuilder {
public:
    PlanBuilder(const Spec& spec, const Profile& profile, const Chosen& chosen);

    static constexpr std::size_t kZeros = kZerosBuffer;

    // Add buffers for arguments and results, as the kernels see them. A device whose kernels do not access 16-bit types
    // has a float32 copy of the caller's buffer in its place. result(Argument) is for the gradient of that argument.
    std::size_t input(Argument argument);
    std::size_t result(Output output);
    std::size_t result(Argument argument);
    // The same for a result that later steps read: it is in the type in which the call computes, and the plan ends by
    // rounding it to a 16-bit type.
    std::size_t read_result(Argument argument);
    std::size_t read_result(Output output);
    std::size_t scratch(std::string name, std::int64_t elements);
    // Adds a scratch buffer of the same type as another buffer.
    std::size_t scratch_like(std::size_t other, std::string name, std::int64_t elements);
    // Adds a scratch buffer in the call's 16-bit type.
    std::size_t scratch_16bit(std::string name, std::int64_t elements);
    // Adds a scratch sequence with `elements` elements per row. With `live_only` and lengths it is packed, as in a
    // packed call; the rest of its memory is never touched.
    std::size_t scratch_sequence(std::string name, std::int64_t elements, bool live_only);
    // Returns whether a sequence is packed in the kernels' buffers.
    [[nodiscard]] bool is_packed(std::size_t sequence) const {
        return plan_.spec.packed() || live_only_.contains(sequence);
    }
    // Returns the caller's buffer of an argument. The plan must already have the argument as an input.
    [[nodiscard]] std::size_t input_of(Argument argument) const;
    [[nodiscard]] const std::string& name_of_buffer(std::size_t buffer) const { return plan_.buffers.at(buffer).name; }
    // Returns whether kernels read and write the caller's buffers of a 16-bit type.
    [[nodiscard]] bool accesses_16bit() const { return is_half(plan_.spec.dtype) && profile_.storage_16bit; }
    // Returns whether the buffer's numbers are in the call's 16-bit type. All other buffers hold numbers of the
    // type in which the call computes, or no numbers.
    [[nodiscard]] bool is_16bit(std::size_t buffer) const { return sixteen_bits_.contains(buffer); }
    [[nodiscard]] std::uint64_t element_bytes(std::size_t buffer) const;
    [[nodiscard]] std::int64_t count_of(std::size_t buffer) const;
    // Returns one bit for each of a kernel's tensors, as Constants::stored takes them.
    [[nodiscard]] std::uint64_t stored(std::initializer_list<std::size_t> tensors) const;
    // Returns the buffer that already has these contents, or a new one.
    std::size_t constant(std::string name, Block contents);
    // Adds a buffer for elements of `from` in another order, which `layout` identifies. If `from` is an input, later
    // calls with the same array reuse the contents. The dispatches that fill the buffer must name it in `fills`.
    std::size_t prepacked(std::string name, std::int64_t elements, std::size_t from, std::vector<std::int64_t> layout,
                          bool optional = false);
    // Adds the device's word of that role.
    std::size_t failed_waits();
    std::size_t kernel(std::string shader, Constants constants);
    // Returns the cell kernel with this name for the call's cell.
    std::size_t cell_kernel(const std::string& name, Constants constants);

    // Add steps. An `independent` step may run concurrently with the step before it. It still waits at a barrier if it
    // uses a buffer that was first written since the last barrier.
    void product(const std::string& label, const Product& product, bool independent = false);
    void row_sum(const std::string& label, const RowSum& sum, bool independent = false);
    void last_rows(const std::string& label, const LastRows& rows, bool independent = false);
    void combine(const std::string& label, const Combination& combination, bool independent = false);
    void copy_rows(const std::string& label, const RowCopy& copy, bool independent = false);
    // Rounds numbers to the call's 16-bit type, if it has one and the buffer is in float32.
    void round(const std::string& label, std::size_t buffer, std::int64_t elements);
    // `fills`: see Dispatch.
    void dispatch(const std::string& label, std::size_t kernel, std::array<std::uint32_t, 3> groups, Block push,
                  bool independent = false, std::size_t fills = kNoBuffer);
    void clear(std::size_t buffer, std::size_t fills = kNoBuffer);
    // Add the steps that `one` and `other` add, or that `one` adds and those that come next, up to the loop. They run
    // at the same time if the products' strategy gains by that. No step of one uses what the other writes.
    void beside(const std::function<void()>& one, const std::function<void()>& other);
    void beside_start_of_loop(const std::function<void()>& one);
    void add(Step step);
    // Adds a loop, of whose turns each makes `steps` steps. In a wavefront, it becomes a lane.
    void add(Loop loop, std::int64_t steps);
    // Adds a lane without a loop.
    void add_lane(const std::function<void(const TimeRows&)>& add);
    // Adds dispatches to each piece of the lane, before or after its loop. `add` gets the piece's rows of the time
    // axis.
    enum class Place : std::uint8_t { before, after };
    void add_to_pieces(Place place, const std::function<void(const TimeRows&)>& add);
    // Adds the steps that `add` adds. Within add_to_pieces(), they come before the lane, for all pieces.
    void before_lane(const std::function<void()>& add);
    // Returns the dispatches that `add` adds, for a loop's body, instead of adding them to the plan.
    std::vector<Dispatch> collect(const std::function<void()>& add);
    void count_flops(double flops) { plan_.flops += flops; }
    // Spreads a linear number of workgroups over x and y.
    [[nodiscard]] std::array<std::uint32_t, 3> groups(std::int64_t linear, std::int64_t z = 1) const;

    [[nodiscard]] BufferReference at(std::size_t buffer, std::int64_t element) const;

    [[nodiscard]] const Spec& spec() const { return plan_.spec; }
    [[nodiscard]] const Profile& profile() const { return profile_; }
    // Returns the tuning parameters of the strategies that run the call.
    [[nodiscard]] const Parameters& parameters() const { return plan_.choice.parameters; }
    // Returns the notes that a strategy takes while it plans, such as the buffers that it has already filled. Each
    // strategy has its own type of notes. They are created on first use.
    template <class Notes>
    [[nodiscard]] Notes& notes() {
        std::any& held = notes_[typeid(Notes)];
        if (!held.has_value()) held = Notes{};
        return *std::any_cast<Notes>(&held);
    }
    Plan finish();

private:
    std::size_t add_buffer(std::string name, Role role, std::uint64_t bytes);
    std::size_t add_result(std::string name, const TensorShape& shape, bool is_read = false);
    [[nodiscard]] std::uint64_t bytes(std::int64_t elements) const;
    [[nodiscard]] std::uint64_t bytes_of_caller(std::int64_t elements) const;
    // Returns whether a dispatch with these push constants must wait at a barrier, and records the buffers that it
    // uses.
    bool waits(const Block& push, bool independent);
    // Returns the steps that `add` adds, without those that clear buffers, which the plan gets.
    std::vector<Step> taken(const std::function<void()>& add);
    // Adds steps that run at the same time.
    void add_branches(std::vector<Step> one, std::vector<Step> other);
    void end_start_of_loop();

    Plan plan_;
    const Profile& profile_;
    const ProductStrategy& products_;
    std::set<std::size_t> sixteen_bits_;          // buffers of a 16-bit type that kernels access
    std::map<std::size_t, std::size_t> widened_;  // float32 copies, and the inputs that they are made from
    std::set<std::size_t> live_only_;             // packed scratch sequences
    std::vector<Conversion> narrowings_;          // of results; added at the end of the plan
    // `used_`: buffers that steps have used so far. `fresh_`: those first used since the last barrier; their first user
    // writes them.
    std::set<std::size_t> used_, fresh_;
    bool after_loop_ = false;
    std::optional<std::vector<Step>> beside_loop_;  // what runs beside the steps from `loop_start_` on
    std::size_t loop_start_ = 0;
    std::size_t lane_ = 0;           // the step that is the call's lane of a wavefront
    bool adds_pieces_ = false;       // within add_to_pieces()
    std::vector<Step> before_lane_;  // what it has to add before the lane
    std::map<std::type_index, std::any> notes_;
};

// Thrown if a number in a plan needs more than the 32 bits with which kernels count. make_plan() then refuses the call.
struct TooLarge : std::length_error {
    using std::length_error::length_error;
};
std::uint32_t u32(std::int64_t value);  // throws TooLarge

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace vkrnn
