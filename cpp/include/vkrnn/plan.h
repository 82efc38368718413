// A plan: the work of a call on a device, step by step. It is a printable, comparable value, made from a Spec, a
// Profile and the strategies that the caller fixes.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "vkrnn/profile.h"
#include "vkrnn/spec.h"
#include "vkrnn/strategy_choice.h"
#include "vkrnn/tuning.h"

namespace vkrnn {

// A buffer reference: a byte of one of a plan's buffers, in 64 bits. It stands in a struct that a kernel is given (see
// shaders/common/abi.h) until the plan is recorded. Recording replaces it by the device address.
using BufferReference = std::uint64_t;
constexpr BufferReference reference_to(std::size_t buffer, std::uint64_t byte_offset) {
    return (static_cast<BufferReference>(buffer) << 48) | byte_offset;
}
constexpr std::size_t referenced_buffer(BufferReference r) { return static_cast<std::size_t>(r >> 48); }
constexpr std::uint64_t referenced_offset(BufferReference r) { return r & ((BufferReference{1} << 48) - 1); }

// Bytes for the device. They begin with `references` buffer references of 8 bytes each, which recording replaces by
// addresses.
struct Block {
    std::vector<std::byte> bytes;
    std::uint32_t references = 0;
    bool operator==(const Block&) const = default;
};

inline BufferReference reference_at(const Block& block, std::size_t i) {
    BufferReference found = 0;
    std::memcpy(&found, block.bytes.data() + i * sizeof(found), sizeof(found));
    return found;
}

// Converts to a BufferReference and to nothing else.
struct AnyReference {
    template <std::same_as<BufferReference> T>
    operator T() const;  // NOLINT(google-explicit-constructor): count_references tests implicit conversions
};

template <class Struct, std::size_t... i>
consteval bool begins_with_references(std::index_sequence<i...> /*counted*/) {
    return requires { Struct{(static_cast<void>(i), AnyReference{})...}; };
}

// Returns the number of buffer references, in arrays or not, that come before a struct's other members.
template <class Struct, std::uint32_t found = 0>
consteval std::uint32_t count_references() {
    if constexpr (begins_with_references<Struct>(std::make_index_sequence<found + 1>{}))
        return count_references<Struct, found + 1>();
    else
        return found;
}

template <class Struct>
Block make_block(const Struct& value) {
    Block block{std::vector<std::byte>(sizeof(Struct)), count_references<Struct>()};
    std::memcpy(block.bytes.data(), &value, sizeof(Struct));
    return block;
}

enum class Role : std::uint8_t {
    input,         // the caller's array, or filled from it before the first step
    result,        // the caller's array, or copied to it after the last step
    scratch,       // neither; contents undefined at the start
    constant,      // filled from `contents` before the first step
    prepacked,     // an input's elements in another order; filled by dispatches, or kept from an earlier call
    failed_waits,  // the device's word for all calls, which is set if workgroups gave up waiting for each other
};
std::string_view name_of(Role role);

constexpr std::size_t kNoBuffer = static_cast<std::size_t>(-1);
// In a plan for a GPU, buffer 0 holds H zeros, which the first step clears and no other step writes. Kernels read it in
// place of absent tensors.
constexpr std::size_t kZerosBuffer = 0;

// The contents of a prepacked buffer: the elements of an input in another order. Equal layouts mean equal orders, in
// all plans.
struct Prepacking {
    std::size_t input = kNoBuffer;
    std::vector<std::int64_t> layout;
    // Whether kernels can read the input directly. They do if the buffer would be filled for this call alone.
    bool optional = false;
    bool operator==(const Prepacking&) const = default;
};

struct PlanBuffer {
    std::string name;  // "source", "output", "projected", ...
    Role role = Role::scratch;
    std::uint64_t bytes = 0;
    Block contents = {};         // if the role is constant
    Prepacking prepacking = {};  // if the role is prepacked
    bool operator==(const PlanBuffer&) const = default;
};

// The name of a specialization constant, and how to read its value.
struct ConstantName {
    enum class As : std::uint8_t {
        count,
        flag,
        slots,        // the slot of gate g in hexadecimal digit g
        activations,  // this constant and the next ones
        float32,
        float64,  // a number in two constants
        dtype,
    };
    std::uint32_t number = 0;
    std::string_view name;
    As as = As::count;
};

// A compute kernel: a shader of the package, or a function of the back end, and the values of its specialization
// constants 0, 1, 2, ...
struct Kernel {
    std::string shader;  // "gemm_register", "lstm_forward", ...; or a kernel of kernel.h or library_product.h
    std::vector<std::uint32_t> constants;
    std::vector<ConstantName> names = {};  // for a plan's text; equal kernels may have different ones

    friend bool operator==(const Kernel& a, const Kernel& b) {
        return a.shader == b.shader && a.constants == b.constants;
    }
    friend auto operator<=>(const Kernel& a, const Kernel& b) {
        return std::tie(a.shader, a.constants) <=> std::tie(b.shader, b.constants);
    }
};

// Returns the constants of a kernel that have a name and are not 0, by number.
using ConstantValue = std::variant<bool, std::uint32_t, double, std::string>;
std::vector<std::pair<std::string_view, ConstantValue>> named_constants(const Kernel& kernel);

struct Dispatch {
    std::string label;       // "project", "step", "reduce bias": shown in the plan's text and as a debug label
    std::size_t kernel = 0;  // index into Plan::kernels
    std::array<std::uint32_t, 3> groups{1, 1, 1};  // workgroups; zeros if the kernel is no shader
    Block push;                                    // push constants
    bool after = true;                             // waits for the writes of the dispatch before it
    // The byte offset in the push constants where a loop writes its 32-bit counter.
    std::optional<std::uint32_t> counter = {};
    // The prepacked buffer that this dispatch fills or prepares. A call that finds it filled skips the dispatch.
    std::size_t fills = kNoBuffer;
    std::uint32_t launch_shared_memory = 0;  // bytes of the kernel's LAUNCH_SHARED_ARRAY, which CUDA's launches give
    bool operator==(const Dispatch&) const = default;
};

// Fills a buffer with zeros. `fills`: see Dispatch.
struct Clear {
    std::size_t buffer = 0;
    std::size_t fills = kNoBuffer;
    bool operator==(const Clear&) const = default;
};

// Records the body `count` times. The counters of its dispatches start at `first` and grow by `increment`. Every
// dispatch waits for the one before it.
struct Loop {
    std::int64_t count = 0;
    std::int32_t first = 0;
    std::int32_t increment = 1;
    std::vector<Dispatch> body;
    bool operator==(const Loop&) const = default;
};

// Steps that run one after another, as those of a plan.
using Sequence = std::vector<std::variant<Dispatch, Loop>>;

// Sequences that run at the same time. What comes next waits for all of them.
struct Branches {
    std::vector<Sequence> branches;
    bool operator==(const Branches&) const = default;
};

// Layers that run at the same time. A lane is the work of one layer, cut into pieces of the time axis. Piece c of a
// lane begins when piece c - 1 of its own and piece c of the lane before it are done.
struct Wavefront {
    struct Lane {
        Sequence before;  // needs no other lane, and ends before the first piece begins
        std::vector<Sequence> pieces;
        Sequence after;  // begins when the last piece is done
        bool operator==(const Lane&) const = default;
    };
    std::vector<Lane> lanes;  // all have as many pieces
    bool operator==(const Wavefront&) const = default;
};

// Calls `each` with what a lane does before its pieces, with each piece, and with what it does after them.
template <class Each>
void for_each_piece(auto& lane, const Each& each) {
    each(lane.before);
    for (auto& piece : lane.pieces) each(piece);
    each(lane.after);
}

using Step = std::variant<Clear, Dispatch, Loop, Branches, Wavefront>;

// Calls `each` with every dispatch of a step, or of one of its alternatives, but once for all turns of a loop.
template <class Some, class Each>
void for_each_dispatch(Some& some, const Each& each) {
    using Plain = std::remove_cv_t<Some>;
    if constexpr (std::same_as<Plain, Dispatch>) {
        each(some);
    } else if constexpr (std::same_as<Plain, Loop>) {
        for (auto& dispatch : some.body) each(dispatch);
    } else if constexpr (std::same_as<Plain, Branches>) {
        for (auto& branch : some.branches)
            for (auto& step : branch) for_each_dispatch(step, each);
    } else if constexpr (std::same_as<Plain, Wavefront>) {
        for (auto& lane : some.lanes)
            for_each_piece(lane, [&](auto& piece) {
                for (auto& step : piece) for_each_dispatch(step, each);
            });
    } else if constexpr (!std::same_as<Plain, Clear>) {
        std::visit([&](auto& alternative) { for_each_dispatch(alternative, each); }, some);
    }
}

struct Plan;

// A plan that another one has, compared by value.
struct OtherPlan {
    std::shared_ptr<const Plan> plan = {};
    bool operator==(const OtherPlan& other) const;
};

struct Plan {
    Spec spec;
    StrategyChoice choice;  // all names and tuning parameters are set
    std::vector<PlanBuffer> buffers;
    std::vector<Kernel> kernels;
    std::vector<Step> steps;
    // The buffers of the arguments that are present, and those of the results in the documented order.
    std::vector<std::pair<Argument, std::size_t>> inputs;
    std::vector<std::size_t> results;
    double flops = 0;  // of the matrix products
    // Estimated times: of the time loop, and of the products and sums around it.
    double loop_microseconds = 0, products_microseconds = 0;
    // In a plan that has wavefronts which the caller did not ask for: the plan of the same call without them. Its
    // inputs and results are those of this plan. A call on the CPU uses it if it has too few threads for a wavefront,
    // or steps that are worth all threads. Calls on a GPU use it if waits between workgroups have failed there: see
    // run/failed_waits.h.
    OtherPlan in_turn = {};
    std::uint64_t shared = 0;  // bytes that a call saves because buffers that are not needed together share memory

    [[nodiscard]] std::uint64_t bytes() const;  // of all buffers
    // Returns the bytes of the buffers that are needed at the same time, without inputs and results that exist already.
    [[nodiscard]] std::uint64_t peak_bytes(std::span<const std::size_t> existing = {}) const;
    // Returns the same for a call whose inputs and results all exist.
    [[nodiscard]] std::uint64_t temporary_bytes() const;
    [[nodiscard]] std::int64_t dispatches() const;  // with loops unrolled
    bool operator==(const Plan&) const = default;
};

// Returns the plan for a call. It uses the strategies that are fixed, and for the rest those with the lowest estimated
// time. If none are fixed, the strategies that `tuning` has for the call are used, unless the device cannot run it with
// them. Throws NotImplementedError if the device or a fixed strategy cannot run the call.
Plan make_plan(const Spec& spec, const Profile& profile, const StrategyChoice& fixed = {}, const Tuning& tuning = {});

// Returns the plan as text, one line per buffer and step; `label` is the caller's name for the call.
std::string describe(const Plan& plan, std::string_view label = {});

}  // namespace vkrnn
