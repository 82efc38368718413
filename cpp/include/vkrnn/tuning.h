// A table of the strategies that were measured to be fastest on a device, by call. The core only reads it; its callers
// measure and store it.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "vkrnn/spec.h"
#include "vkrnn/strategy_choice.h"

namespace vkrnn {

// The properties of a call that decide which strategy is fastest. Calls that agree in all of them share an entry.
struct TunedCall {
    std::string operation;  // "lstm", "lstm_gradients", ...
    bool training = false;  // whether a forward call returns its training state
    Dtype dtype = Dtype::float32;
    Precision precision = Precision::ieee;
    std::int64_t T = 0, N = 0, I = 0, H = 0, D = 0;  // T: rounded up to a power of two
    std::int64_t phases = 1;                         // of a step
    auto operator<=>(const TunedCall&) const = default;
};
TunedCall tuned_call(const Spec& spec);

using Tuning = std::map<TunedCall, StrategyChoice>;

}  // namespace vkrnn
