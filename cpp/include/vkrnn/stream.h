// A stream runs recurrent layers one time step at a time and keeps their state from step to step.
//
//   const std::shared_ptr<Device> device = Device::open(0);
//   StreamLayer layer{default_descriptor(CellKind::lstm), {
//       {Argument::input_weight, {weight.data(), {4 * H, I}}},
//       {Argument::recurrent_weight, {recurrent.data(), {4 * H, H}}},
//   }};
//   Stream stream(device, {&layer, 1});
//   for (;;) stream.step(std::span(input), std::span(output));  // I floats in, H floats out
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn {

// A C-contiguous weight in host memory.
struct HostTensor {
    const void* data = nullptr;
    TensorShape shape;
    Dtype dtype = Dtype::float32;
};

// A recurrent layer: its options and its weights, which are the arguments of a call without the source, initial states,
// mask and lengths. A stream copies the weights when it is made.
struct StreamLayer {
    Descriptor descriptor;
    std::map<Argument, HostTensor> weights;
};

struct StreamOptions {
    std::int64_t batch = 1;  // N
    // The most threads that a step may use; 0: as many as its work is worth. With 1 a step waits for no other thread.
    unsigned threads = 0;
};

class StreamSteps;

// Layers, one fed by the output of the one before, with the state that they carry. Each step has the same bits as in
// one call per layer over the whole sequence that starts from the same state.
//
// On the CPU, a step that one thread runs neither allocates memory, nor locks, nor logs, nor makes a system call. Only
// the first one in each thread may allocate. A step is worth several threads if it takes tens of microseconds; then it
// wakes the threads of the pool and waits for them. Other devices run steps as ordinary calls, which is slow.
//
// One thread at a time may use a stream: functions throw Error if another one is in the stream.
class Stream {
public:
    // Throws TypeError or ValueError about the layers, NotImplementedError for layers that look ahead in time
    // (bidirectional, reverse) or for a 16-bit type on a device other than the CPU, MemoryError and DeviceError.
    Stream(std::shared_ptr<Device> device, std::span<const StreamLayer> layers, const StreamOptions& options = {});
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // Computes [steps, N, I] -> [steps, N, H] in host memory; the two must not overlap. Throws DeviceError if the
    // device was closed, and Interrupted if `poll` stopped a long block. The state is unchanged if it throws.
    void step(const void* input, void* output, std::int64_t steps = 1, const Poll& poll = {});
    // The same; the number of steps follows from the size of the input. Throw TypeError if the stream has another type,
    // ValueError if the sizes do not fit.
    void step(std::span<const float> input, std::span<float> output);
    void step(std::span<const double> input, std::span<double> output);

    // Sets the state to zeros, of all batch rows or of some. Throws ValueError for a row that is not there.
    void reset();
    void reset(std::span<const std::int64_t> rows);

    // Reads and writes a layer's hidden state [N, H] and cell state [N, H], which is null where the cell has none. The
    // elements are float64 if the stream's are, else float32: that is how layers of 16-bit types carry their state.
    void read_state(std::size_t layer, void* hidden, void* cell);
    void write_state(std::size_t layer, const void* hidden, const void* cell);

    [[nodiscard]] std::size_t layers() const { return specs_.size(); }
    [[nodiscard]] const Spec& spec(std::size_t layer) const { return specs_.at(layer); }  // of one step
    [[nodiscard]] Dtype dtype() const { return specs_.front().dtype; }
    [[nodiscard]] std::int64_t batch() const { return specs_.front().N; }
    [[nodiscard]] std::int64_t inputs() const { return specs_.front().I; }  // I of the first layer
    [[nodiscard]] std::int64_t outputs() const { return specs_.back().H; }  // H of the last layer
    [[nodiscard]] Device& device() const { return *device_; }

private:
    class Turn;
    template <class T>
    void checked_step(std::span<const T> input, std::span<T> output, Dtype dtype);
    void check_usable() const;

    std::shared_ptr<Device> device_;
    std::vector<Spec> specs_;
    std::unique_ptr<StreamSteps> steps_;
    std::vector<std::byte> scratch_;  // for one state
    std::atomic<bool> in_use_ = false;
};

}  // namespace vkrnn
