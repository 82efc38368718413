// A descriptor holds the options of one recurrent operation. A value type, hashable and comparable.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace vkrnn {

enum class CellKind : std::uint8_t { single_gate_rnn, lstm, gru };

// MPSGraphRNNActivation; the values are Apple's.
enum class Activation : std::uint8_t { none, relu, tanh, sigmoid, hard_sigmoid };

// The boolean properties that planning knows. forget_gate_last (LSTM) and reset_gate_first (GRU) are both "the other
// gate order". Those that only a cell's own file computes with are the flags from cell_options on, see cell_option.
enum class Flag : std::uint8_t {
    reverse,
    bidirectional,
    training,
    produce_cell,
    other_gate_order,
    reset_after,
    cell_options
};

// Returns the flag that the cell's file declares by CELL_OPTION(bit, ...).
constexpr Flag cell_option(std::uint8_t bit) {
    return static_cast<Flag>(static_cast<std::uint8_t>(Flag::cell_options) + bit);
}

constexpr std::size_t kActivationSlots = 5;
// Slots of the floating-point properties: two for the cell's own, then those that every cell has.
constexpr std::size_t kNumberSlots = 5;
constexpr std::size_t kHardSigmoidAlphaSlot = 2, kHardSigmoidBetaSlot = 3, kClipSlot = 4;

struct Descriptor {
    CellKind cell = CellKind::single_gate_rnn;
    std::uint32_t flags = 0;  // one bit per Flag
    // One per gate in canonical order, then the one applied to the cell state (LSTM): see cells.cpp.
    std::array<Activation, kActivationSlots> activations{};
    // The floating-point properties, by slot. A clip of 0 means no clipping.
    std::array<double, kNumberSlots> numbers{0, 0, 0.2, 0.5, 0};

    [[nodiscard]] bool has(Flag flag) const { return ((flags >> static_cast<unsigned>(flag)) & 1u) != 0; }
    void set(Flag flag, bool on) {
        const std::uint32_t bit = 1u << static_cast<unsigned>(flag);
        flags = on ? flags | bit : flags & ~bit;
    }
    // The options of the cell alone, from bit 0 on.
    [[nodiscard]] std::uint32_t cell_options() const { return flags >> static_cast<unsigned>(Flag::cell_options); }
    auto operator<=>(const Descriptor&) const = default;
};

}  // namespace vkrnn
