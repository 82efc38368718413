// The way in which every front runs a plan.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "vkrnn/device.h"

namespace vkrnn {

// Returns whether a call with this operand or result needs no memory for it: it is on the device, or in host memory
// that the device reads and writes in place.
template <class Byte>
bool exists_on(const Device& device, const TensorLocation<Byte>& location) {
    return location.storage != nullptr || device.profile().backend == Backend::native;
}

// Refuses a call that can never fit with MemoryError, and runs it otherwise. Everything else is as for Device::run.
void run_plan(Device& device, const std::shared_ptr<const Plan>& plan, std::span<const InputLocation> inputs,
              std::span<const ResultLocation> results, bool wait, std::string_view label, const Poll& poll);

}  // namespace vkrnn
