// A descriptor holds the options of one recurrent operation. It is a comparable value.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <limits>

namespace vkrnn {

enum class CellKind : std::uint8_t { single_gate_rnn, lstm, gru, slstm };

// The values are those of Apple's MPSGraphRNNActivation.
enum class Activation : std::uint8_t { none, relu, tanh, sigmoid, hard_sigmoid };

// Boolean properties that planning uses. `other_gate_order` is forget_gate_last (LSTM) or reset_gate_first (GRU). The
// flags from `cell_options` on are options that only the cell's GLSL file uses; see cell_option().
enum class Flag : std::uint8_t {
    reverse,
    bidirectional,
    training,
    produce_cell,
    other_gate_order,
    reset_after,
    cell_options
};

// Returns the flag that the cell's GLSL file declares with CELL_OPTION(bit, ...).
constexpr Flag cell_option(std::uint8_t bit) {
    return static_cast<Flag>(static_cast<std::uint8_t>(Flag::cell_options) + bit);
}

constexpr std::size_t kActivationSlots = 5;
// Slots of the floating-point properties: two for a cell's own properties, then four that cells share.
constexpr std::size_t kNumberSlots = 6;
constexpr std::size_t kHardSigmoidAlphaSlot = 2, kHardSigmoidBetaSlot = 3, kClipSlot = 4, kGradientClipSlot = 5;
// Slots of the properties that count something: into how many blocks the recurrent and the input weights are divided.
constexpr std::size_t kCountSlots = 2;
constexpr std::size_t kHeadsSlot = 0, kInputHeadsSlot = 1;

struct Descriptor {
    CellKind cell = CellKind::single_gate_rnn;
    std::uint32_t flags = 0;  // one bit per Flag
    // One activation per gate in canonical order, then that of the cell state (LSTM); see cells.cpp.
    std::array<Activation, kActivationSlots> activations{};
    // The floating-point properties, by slot. A clip of 0 means no clipping, and so does an infinite gradient clip.
    std::array<double, kNumberSlots> numbers{0, 0, 0.2, 0.5, 0, std::numeric_limits<double>::infinity()};
    std::array<std::int64_t, kCountSlots> counts{1, 1};

    [[nodiscard]] bool has(Flag flag) const { return ((flags >> static_cast<unsigned>(flag)) & 1u) != 0; }
    void set(Flag flag, bool on) {
        const std::uint32_t bit = 1u << static_cast<unsigned>(flag);
        flags = on ? flags | bit : flags & ~bit;
    }
    // Returns the flags from `cell_options` on, shifted to bit 0.
    [[nodiscard]] std::uint32_t cell_options() const { return flags >> static_cast<unsigned>(Flag::cell_options); }
    auto operator<=>(const Descriptor&) const = default;
};

}  // namespace vkrnn
