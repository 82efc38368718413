#include "call_buffers.h"

#include <stdexcept>

namespace vkrnn {
namespace {

template <class Byte>
void check_operand(const Plan& plan, std::size_t buffer, Role role, const TensorLocation<Byte>& location) {
    if (buffer >= plan.buffers.size() || plan.buffers[buffer].role != role)
        throw std::out_of_range("the plan has no buffer of that role for an input or result");
    if (!location.storage) return;
    const std::uint64_t bytes = location.storage->bytes();
    if (location.offset > bytes || plan.buffers[buffer].bytes > bytes - location.offset)
        throw std::out_of_range("a tensor extends beyond its storage");
}

}  // namespace

void check_operands(const Plan& plan, std::span<const InputLocation> inputs, std::span<const ResultLocation> results) {
    if (inputs.size() != plan.inputs.size() || results.size() != plan.results.size())
        throw std::invalid_argument("the arrays do not match the plan");
    for (std::size_t i = 0; i < inputs.size(); ++i) check_operand(plan, plan.inputs[i].second, Role::input, inputs[i]);
    for (std::size_t i = 0; i < results.size(); ++i) check_operand(plan, plan.results[i], Role::result, results[i]);
}

}  // namespace vkrnn
