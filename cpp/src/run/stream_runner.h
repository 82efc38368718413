// A device's part of a stream. It keeps the weights and states, and runs the steps.
#pragma once

#include <map>
#include <vector>

#include "vkrnn/device.h"
#include "vkrnn/prepared.h"

namespace vkrnn {

// In place of a number of threads for Device::make_stream_runner(): steps are run one at a time, each with as many
// threads as its work is worth and are allowed then.
inline constexpr unsigned kSingleSteps = ~0U;

// A checked layer. The spec is that of a call of one time step with initial states.
struct StreamPart {
    Spec spec;
    std::map<Argument, const void*> weights;  // valid until the StreamRunner is made
};

// Not thread-safe.
class StreamRunner {
public:
    StreamRunner() = default;
    virtual ~StreamRunner() = default;
    StreamRunner(const StreamRunner&) = delete;
    StreamRunner& operator=(const StreamRunner&) = delete;

    // Runs all layers: `output` [steps, N, H] from `input` [steps, N, I], both in host memory. If it throws, the state
    // is unchanged.
    virtual void run(const void* input, void* output, std::int64_t steps, const Poll& poll) = 0;

    // Runs a single step, each of whose threads first does its share of other work.
    virtual void run_step(const void* input, void* output, const Poll& poll, const Share& share) {
        share(0, 1);
        run(input, output, 1, poll);
    }

    // Returns whether a single step runs on the calling thread alone, allocates no memory and cannot fail.
    [[nodiscard]] virtual bool is_simple() const { return false; }

    // Copy a layer's state, Argument::init_state or init_cell, to or from host memory, in the type in which it is
    // carried.
    virtual void read(std::size_t layer, Argument state, void* to) = 0;
    virtual void write(std::size_t layer, Argument state, const void* from) = 0;
};

// Returns the bytes of a state [N, H] or [N, C H] in the type in which it is carried.
inline std::uint64_t state_bytes(const Spec& spec, Argument state) {
    return static_cast<std::uint64_t>(elements_of(shape_of(spec, state))) * compute_bytes(spec.dtype);
}

}  // namespace vkrnn
