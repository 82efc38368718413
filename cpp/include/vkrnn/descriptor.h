// A descriptor holds the options of one recurrent operation. A value type, hashable and comparable.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace vkrnn {

enum class CellKind : std::uint8_t { single_gate_rnn, lstm, gru };

// MPSGraphRNNActivation; the values are Apple's.
enum class Activation : std::uint8_t { none, relu, tanh, sigmoid, hard_sigmoid };

// The boolean properties. forget_gate_last (LSTM) and reset_gate_first (GRU) are both "the other gate order".
enum class Flag : std::uint8_t {
    reverse,
    bidirectional,
    training,
    produce_cell,
    other_gate_order,
    reset_after,
    flip_z
};

constexpr std::size_t kActivationSlots = 5;

struct Descriptor {
    CellKind cell = CellKind::single_gate_rnn;
    std::uint8_t flags = 0;  // one bit per Flag
    // One per gate in canonical order, then the one applied to the cell state (LSTM): see cells.cpp.
    std::array<Activation, kActivationSlots> activations{};

    [[nodiscard]] bool has(Flag flag) const { return ((flags >> static_cast<unsigned>(flag)) & 1u) != 0; }
    void set(Flag flag, bool on) {
        const auto bit = static_cast<std::uint8_t>(1u << static_cast<unsigned>(flag));
        flags = static_cast<std::uint8_t>(on ? flags | bit : flags & ~bit);
    }
    auto operator<=>(const Descriptor&) const = default;
};

}  // namespace vkrnn
