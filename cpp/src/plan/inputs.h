// The buffers of a call's arguments.
#pragma once

#include "step_block.h"

namespace vkrnn {

// Adds a buffer for each argument that is present, in the order of the operation's parameters.
class Inputs {
public:
    explicit Inputs(PlanBuilder& builder);

    // Returns the argument's buffer, or the buffer of zeros if the argument is absent.
    std::size_t operator[](Argument argument) const { return buffers_[static_cast<std::size_t>(argument)]; }

    // Returns the buffer of the initial cell states, all of them side by side, or the buffer of zeros if there are
    // none.
    [[nodiscard]] std::size_t initial_cells() const { return initial_cells_; }

    // Sets the views that forward and backward steps share: bias, vectors, mask, initial state and cell, lengths,
    // resets, blends.
    void set(StepBlock& block) const;

private:
    std::size_t& at(Argument argument) { return buffers_[static_cast<std::size_t>(argument)]; }
    // Adds PyTorch's two biases.
    void add_biases(PlanBuilder& builder);

    const Spec& spec_;
    std::array<std::size_t, kArguments> buffers_{};
    std::size_t initial_cells_ = PlanBuilder::kZeros;
};

}  // namespace vkrnn
