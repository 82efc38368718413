// Recurrent layers whose weights stay in device memory from call to call.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vkrnn/device.h"
#include "vkrnn/network.h"

namespace vkrnn {

class StreamRunner;

// Work that several threads share. Each thread calls the function with its own number and the number of threads.
using Share = std::function<void(unsigned thread, unsigned threads)>;

// The operands of a call of PreparedLayers: C-contiguous, in host memory, of the layers' type. L is the number of
// layers, D the number of directions.
struct LayersCall {
    std::int64_t T = 0, N = 0;
    const void* source = nullptr;                   // [T, N, I]
    const void *hidden = nullptr, *cell = nullptr;  // initial states [L, D, N, H]; null: zeros
    const std::int32_t* lengths = nullptr;          // [N], from 0 to T; null: all are T
    void* output = nullptr;                         // [T, N, D H], of the last layer
    void* last_hidden = nullptr;                    // [L, D, N, H]
    void* last_cell = nullptr;                      // the same; not used if the layers have no cell state
    bool tf32 = false;                              // float32 products may be rounded
};

// A network whose layers have the same size, with states in the layout of PyTorch and ONNX. On the CPU, a step of one
// batch row runs as a step of a stream. The results are bit-identical to one call of Device::run() per layer.
//
// Thread-safe.
class PreparedLayers {
public:
    // Copies the weights. Throws TypeError or ValueError about the layers, which must agree in H and directions,
    // MemoryError and DeviceError.
    PreparedLayers(std::shared_ptr<Device> device, std::span<const NetworkLayer> layers);
    ~PreparedLayers();
    PreparedLayers(const PreparedLayers&) = delete;
    PreparedLayers& operator=(const PreparedLayers&) = delete;

    // Runs all layers. If `share` is given, the threads of the call run it before the layers. Throws ValueError about
    // the lengths, MemoryError, DeviceError, and Interrupted if `poll` stopped it. After an exception, `share` may or
    // may not have run.
    void run(const LayersCall& given, const Poll& poll, const Share& share = {}) const;

    // Runs one step of one batch row as a stream does, on the calling thread, in a few microseconds. Does nothing and
    // returns false if the call has more steps or rows or a row without steps, if the step may be worth several
    // threads, if another thread is running a step, or if the device cannot be used. The caller should then use run().
    // Throws nothing.
    bool run_step(const LayersCall& call) const;

    [[nodiscard]] std::size_t layers() const { return network_.layers(); }
    // Returns the spec of a call of one step and one batch row.
    [[nodiscard]] const Spec& spec(std::size_t layer) const { return network_.spec(layer); }
    [[nodiscard]] Device& device() const { return *network_.device(); }

private:
    struct Plans;
    std::shared_ptr<const NetworkPlan> plan_of(const LayersCall& call) const;
    std::unique_ptr<StreamRunner> make_runner() const;
    // Without a poll, the step runs only if it cannot fail.
    bool run_prepared_step(const LayersCall& call, const Poll* poll, const Share& share) const;

    const Network network_;
    const std::unique_ptr<Plans> plans_;
    // `runner_` is made by the first single step, and null if the layers cannot run single steps. One thread at a
    // time uses it.
    mutable std::atomic<bool> runner_in_use_ = false;
    mutable bool runner_is_made_ = false;
    mutable std::unique_ptr<StreamRunner> runner_;
    mutable std::vector<std::byte> zeros_;  // a layer's initial state if none is given
};

}  // namespace vkrnn
