// A stream runs recurrent layers one time step at a time and keeps their state from step to step.
//
//   const std::shared_ptr<Device> device = Device::open_cpu();
//   NetworkLayer layer{default_descriptor(CellKind::lstm), {
//       {Argument::input_weight, {weight.data(), {4 * H, I}}},
//       {Argument::recurrent_weight, {recurrent.data(), {4 * H, H}}},
//   }};
//   Stream stream(device, {&layer, 1});
//   for (;;) stream.step(std::span(input), std::span(output));  // I floats in, H floats out
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "vkrnn/device.h"
#include "vkrnn/network_layer.h"

namespace vkrnn {

struct StreamOptions {
    std::int64_t batch = 1;  // N
    // The most threads that a step may use; 0: as many as its work is worth. With 1, a step never waits for another
    // thread.
    unsigned threads = 0;
};

// A layer's hidden state [N, H] and cell state [N, H] in host memory. `cell` is null if the cell has no such state.
template <class Pointer>
struct LayerState {
    Pointer hidden = nullptr, cell = nullptr;
};

class StreamRunner;

// Layers, each fed by the output of the one before, and the state that they carry. The results are bit-identical to one
// call per layer over the whole sequence that starts from the same state.
//
// On the CPU, a step on one thread does not allocate memory, lock, log or make system calls, except that the first step
// in each thread may allocate. Several threads are worth it for steps of tens of microseconds; such a step wakes the
// threads of the pool and waits for them. Other devices run steps as ordinary calls, which is slow.
//
// Only one thread at a time may use a stream. Functions throw Error if another thread is using it.
class Stream {
public:
    // Throws TypeError or ValueError about the layers, NotImplementedError for layers that look ahead in time
    // (bidirectional, reverse) or for a 16-bit type on a device other than the CPU, MemoryError and DeviceError.
    Stream(std::shared_ptr<Device> device, std::span<const NetworkLayer> layers, const StreamOptions& options = {});
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // Computes `output` [steps, N, H] from `input` [steps, N, I]. Both are in host memory and must not overlap. Throws
    // DeviceError if the device was closed, and Interrupted if `poll` stopped a long block. If it throws, the state is
    // unchanged.
    //
    // `factors` [steps, N], if not empty, resets the states before each step: they become factor * state + (1 - factor)
    // * start, where the start is that of reset().
    void step(const void* input, void* output, std::int64_t steps = 1, const Poll& poll = {},
              std::span<const double> factors = {});
    // Do the same; the number of steps follows from the size of the input. Throw TypeError if the stream has another
    // type, ValueError if the sizes do not fit.
    void step(std::span<const float> input, std::span<float> output);
    void step(std::span<const double> input, std::span<double> output);

    // Sets the state of all batch rows, or of the given ones, back to the start: zeros, or the state that the stream
    // had when set_start() was called. Throws ValueError if a row does not exist.
    void reset();
    void reset(std::span<const std::int64_t> rows);
    void set_start();

    // Read and write the state of all layers. The elements are float64 if the stream's type is float64, else float32,
    // because layers of 16-bit types carry their state in float32. Throw ValueError if the number of layers is wrong.
    void read_state(std::span<const LayerState<void*>> layers);
    void write_state(std::span<const LayerState<const void*>> layers);

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
    void check_count(std::size_t count) const;

    // A state of a layer, and its place in start_.
    struct StatePlace {
        std::size_t layer;
        Argument state;
        std::uint64_t offset, bytes;
    };

    // Resets the states as step() says, by factors [N].
    void blend(std::span<const double> factors);
    template <class T>
    void blend_rows(std::span<const double> factors, const StatePlace& place);

    std::shared_ptr<Device> device_;
    std::vector<Spec> specs_;
    std::unique_ptr<StreamRunner> runner_;
    std::vector<StatePlace> states_;
    std::vector<std::byte> start_;    // the states of all layers that reset() goes back to
    std::vector<std::byte> scratch_;  // for one state
    std::atomic<bool> in_use_ = false;
};

}  // namespace vkrnn
