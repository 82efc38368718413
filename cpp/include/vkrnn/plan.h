// The work of a call on a device, step by step: a printable, comparable value made from a Spec, a Profile and what the
// caller fixes of the strategies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "vkrnn/profile.h"
#include "vkrnn/spec.h"
#include "vkrnn/strategy.h"
#include "vkrnn/tuning.h"

namespace vkrnn {

// A place in one of a plan's buffers, in 64 bits: it stands in a struct of abi.h until the plan is recorded, when the
// device address takes its place.
using Place = std::uint64_t;
constexpr Place place(std::size_t buffer, std::uint64_t byte_offset) {
    return (static_cast<Place>(buffer) << 48) | byte_offset;
}
constexpr std::size_t place_buffer(Place p) { return static_cast<std::size_t>(p >> 48); }
constexpr std::uint64_t place_offset(Place p) { return p & ((Place{1} << 48) - 1); }

// Bytes for the device that begin with a number of places (8 bytes each), which recording replaces by addresses.
struct Block {
    std::vector<std::byte> bytes;
    std::uint32_t places = 0;
    bool operator==(const Block&) const = default;
};

inline Place place_at(const Block& block, std::size_t i) {
    Place at = 0;
    std::memcpy(&at, block.bytes.data() + i * sizeof(at), sizeof(at));
    return at;
}

template <class Struct>
Block make_block(const Struct& value, std::uint32_t places) {
    Block block{std::vector<std::byte>(sizeof(Struct)), places};
    std::memcpy(block.bytes.data(), &value, sizeof(Struct));
    return block;
}

enum class Role : std::uint8_t {
    input,     // filled from the caller's array before the first step
    result,    // copied to the caller's array after the last step
    scratch,   // neither; contents undefined at the start
    constant,  // filled from `contents` before the first step
    packed,    // filled from an input by the dispatch that says so, or as an earlier call with that input left it
};
std::string_view name_of(Role role);

constexpr std::size_t kNoBuffer = static_cast<std::size_t>(-1);

// The contents of a packed buffer: the elements of an input in an order that the layout stands for, in any plan.
struct Packing {
    std::size_t input = kNoBuffer;
    std::vector<std::int64_t> layout;
    // Whether the kernels do without, where it would be filled for this call alone: they read the input then.
    bool optional = false;
    bool operator==(const Packing&) const = default;
};

struct PlanBuffer {
    std::string name;  // "source", "output", "projected", ...
    Role role = Role::scratch;
    std::uint64_t bytes = 0;
    Block contents = {};   // of a constant
    Packing packing = {};  // of a packed one
    bool operator==(const PlanBuffer&) const = default;
};

// A compute kernel: a shader of the package and the values of its specialization constants 0, 1, 2, ...
struct Kernel {
    std::string shader;  // "gemm_register", "lstm_forward", ...; of a CPU, one of cpu/kernel.h
    std::vector<std::uint32_t> constants;
    auto operator<=>(const Kernel&) const = default;
};

struct Dispatch {
    std::string label;       // "project", "step", "reduce bias": shown in the plan's text and as a debug label
    std::size_t kernel = 0;  // index into Plan::kernels
    std::array<std::uint32_t, 3> groups{1, 1, 1};  // workgroups; none where a CPU's threads share the work
    Block push;                                    // push constants
    bool after = true;                             // waits for what the dispatch before it wrote
    // The byte of the push constants where a loop writes its 32-bit counter.
    std::optional<std::uint32_t> counter = {};
    // The packed buffer that the dispatch fills or prepares; a call that finds it filled leaves the dispatch out.
    std::size_t fills = kNoBuffer;
    bool operator==(const Dispatch&) const = default;
};

// Fills a buffer with zeros. `fills` is that of Dispatch.
struct Clear {
    std::size_t buffer = 0;
    std::size_t fills = kNoBuffer;
    bool operator==(const Clear&) const = default;
};

// The body is recorded `count` times; the counters of its dispatches run from `first` by `increment`. Every dispatch
// waits for the one before it.
struct Loop {
    std::int64_t count = 0;
    std::int32_t first = 0;
    std::int32_t increment = 1;
    std::vector<Dispatch> body;
    bool operator==(const Loop&) const = default;
};

using Step = std::variant<Clear, Dispatch, Loop>;

struct Plan {
    Spec spec;
    StrategyChoice choice;  // complete
    std::vector<PlanBuffer> buffers;
    std::vector<Kernel> kernels;
    std::vector<Step> steps;
    // The buffers of the arguments present, by Argument, and of the results, in the documented order.
    std::vector<std::pair<Argument, std::size_t>> inputs;
    std::vector<std::size_t> results;
    double flops = 0;  // of the matrix products
    // tf32 if a step rounds the operands of a product. A spec that allows it need not lead to such a step.
    Precision precision = Precision::ieee;

    [[nodiscard]] std::uint64_t bytes() const;      // of all buffers
    [[nodiscard]] std::int64_t dispatches() const;  // with loops unrolled
    bool operator==(const Plan&) const = default;
};

// Returns the plan with the strategies that are fixed, and for the rest those that suit the call. If none are fixed,
// those that the call was tuned with are taken, unless the device cannot run it with them. Throws NotImplementedError
// where the device or a fixed strategy cannot run the call.
Plan make_plan(const Spec& spec, const Profile& profile, const StrategyChoice& fixed = {}, const Tuning& tuning = {});

// Returns the plan as text, one line per buffer and step; `label` is the caller's name for the call.
std::string describe(const Plan& plan, std::string_view label = {});

}  // namespace vkrnn
