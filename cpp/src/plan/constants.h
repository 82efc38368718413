// Specialization constants of a kernel: the values by number, and the names that a plan's text shows.
#pragma once

#include "common/abi.h"
#include "vkrnn/plan.h"

namespace vkrnn {

// The functions set the constants with the numbers of abi.h, give them a name, and return *this. Numbers in between
// that are not set are zeros. Names are literals; a constant without a name is not shown.
class Constants {
public:
    using As = ConstantName::As;

    Constants& set(std::uint32_t number, std::string_view name, std::uint32_t value, As as = As::count);
    Constants& flag(std::uint32_t number, std::string_view name, bool value) {
        return set(number, name, value, As::flag);
    }
    // Sets two constants, which hold a floating-point number of the type in which a call computes.
    Constants& real(std::uint32_t number, std::string_view name, double value, Dtype dtype);

    // Sets how the tensors of a kernel are stored: a bit for each, 1 if it is in this 16-bit type. See abi::kStored.
    Constants& stored(std::uint64_t tensors, Dtype dtype);
    [[nodiscard]] bool has_16bit_tensors() const { return values_.size() > abi::kStored; }

    [[nodiscard]] Kernel kernel(std::string shader) && {
        return {std::move(shader), std::move(values_), std::move(names_)};
    }

private:
    std::vector<std::uint32_t> values_;
    std::vector<ConstantName> names_;
};

// Choices that a strategy makes for a kernel of the time loop. All others follow from the spec.
struct StepOptions {
    std::uint32_t phase = 0;      // 0: the only one; 1, 2: first and second of two
    std::uint32_t keep = 0;       // see abi::kKeep
    std::int64_t part_heads = 0;  // heads of a part: see abi::kHasParts; 0: a direction is not divided
};

// Returns whether the steps of a call store the training state, as a value for `keep`.
std::uint32_t keeps_training_state(const Spec& spec);

// Returns the constants of such a kernel that follow from the call, which are the same for every strategy.
Constants cell_constants(const Spec& spec, const StepOptions& options);

}  // namespace vkrnn
