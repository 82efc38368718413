#include "vkrnn/stream.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "stream_steps.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

using enum Argument;

const std::string kPrefix = "[stream] ";

std::string layer_label(std::size_t layer) { return "layer " + std::to_string(layer); }

// What only a call over a whole sequence can have.
void refuse_whole_sequences(const Descriptor& descriptor, const std::string& prefix) {
    const auto refuse = [&](Flag flag, const std::string& name) {
        if (!descriptor.has(flag)) return;
        throw NotImplementedError(prefix + name + ": expected False, got True; a stream runs forward in time");
    };
    refuse(Flag::bidirectional, "bidirectional");
    refuse(Flag::reverse, "reverse");
}

std::int64_t axis_of(const StreamLayer& layer, Argument argument, std::size_t axis) {
    const auto found = layer.weights.find(argument);
    return found != layer.weights.end() && axis < found->second.shape.size() ? found->second.shape[axis] : 1;
}

Dtype dtype_of(const StreamLayer& layer) {
    const auto found = layer.weights.find(recurrent_weight);
    return found != layer.weights.end() ? found->second.dtype : Dtype::float32;
}

// Returns the spec of one step. `before` is the layer that feeds this one.
Spec check_layer(const StreamLayer& layer, std::size_t number, const Spec* before, std::int64_t batch) {
    Descriptor descriptor = layer.descriptor;
    const std::string label = layer_label(number), prefix = message_prefix(cell(descriptor.cell), false, label) + " ";
    refuse_whole_sequences(descriptor, prefix);
    descriptor.set(Flag::training, false);
    descriptor.set(Flag::produce_cell, false);
    const Dtype dtype = dtype_of(layer);
    if (before != nullptr && before->dtype != dtype)
        throw TypeError(prefix + "recurrent_weight: expected dtype " + std::string(name_of(before->dtype)) +
                        ", that of layer 0, got " + std::string(name_of(dtype)));

    const bool projects = layer.weights.contains(input_weight);
    const std::int64_t given = projects ? axis_of(layer, input_weight, 1) : axis_of(layer, recurrent_weight, 0);
    Arguments arguments;
    for (const auto& [argument, tensor] : layer.weights) {
        if (argument == source || argument == init_state || argument == init_cell || argument == mask ||
            argument == lengths)
            throw TypeError(prefix + std::string(name_of(argument)) + ": a stream's layers have weights alone");
        arguments[argument] = {std::string(name_of(tensor.dtype)), tensor.shape, {}};
    }
    arguments[source] = {std::string(name_of(dtype)), {1, batch, given}, {}};
    Spec spec = check_call(descriptor, false, arguments, label).spec;
    if (before != nullptr && spec.I != before->H)
        throw ValueError(prefix + (projects ? "input_weight" : "recurrent_weight") + ": expected a layer of " +
                         std::to_string(before->H) + " inputs, the H of layer " + std::to_string(number - 1) +
                         ", got one of " + std::to_string(spec.I));
    spec.present |= 1U << static_cast<unsigned>(init_state);
    if (spec.C() > 0) spec.present |= 1U << static_cast<unsigned>(init_cell);
    return spec;
}

}  // namespace

// Keeps other threads out of the stream while it lives.
class Stream::Turn {
public:
    explicit Turn(Stream& stream) : in_use_(stream.in_use_) {
        if (in_use_.exchange(true, std::memory_order_acquire))
            throw Error(kPrefix + "another thread is using the stream; give each thread a stream of its own");
    }
    ~Turn() { in_use_.store(false, std::memory_order_release); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

private:
    std::atomic<bool>& in_use_;
};

Stream::Stream(std::shared_ptr<Device> device, std::span<const StreamLayer> layers, const StreamOptions& options)
    : device_(std::move(device)) {
    if (layers.empty()) throw ValueError(kPrefix + "layers: expected at least one, got none");
    if (options.batch < 1)
        throw ValueError(kPrefix + "batch: expected at least 1, got " + std::to_string(options.batch));
    check_usable();
    std::vector<StreamPart> parts;
    std::uint64_t largest = 0;
    for (const StreamLayer& layer : layers) {
        const Spec* const before = specs_.empty() ? nullptr : &specs_.back();
        Spec spec = check_layer(layer, parts.size(), before, options.batch);
        StreamPart part{spec, {}};
        for (const auto& [argument, tensor] : layer.weights) part.weights.emplace(argument, tensor.data);
        parts.push_back(std::move(part));
        for (const Argument state : {init_state, init_cell})
            if (spec.has(state)) largest = std::max(largest, state_bytes(spec, state));
        specs_.push_back(std::move(spec));
    }
    steps_ = device_->prepare_steps(parts, options.threads);
    scratch_.resize(largest);
    reset();
}

Stream::~Stream() = default;

void Stream::check_usable() const {
    if (device_->closed()) throw DeviceError(kPrefix + "the device is closed; open a new vkrnn.Device");
}

void Stream::step(const void* input, void* output, std::int64_t steps, const Poll& poll) {
    if (steps < 1) throw ValueError(kPrefix + "steps: expected at least 1, got " + std::to_string(steps));
    const Turn turn(*this);
    check_usable();
    steps_->run(input, output, steps, poll);
}

template <class T>
void Stream::checked_step(std::span<const T> input, std::span<T> output, Dtype dtype) {
    if (dtype != this->dtype())
        throw TypeError(kPrefix + "input: expected " + std::string(name_of(this->dtype())) + ", got " +
                        std::string(name_of(dtype)));
    const auto row_in = static_cast<std::size_t>(batch() * inputs());
    const auto row_out = static_cast<std::size_t>(batch() * outputs());
    if (input.size() == row_in && output.size() == row_out) return step(input.data(), output.data());
    if (input.empty() || input.size() % row_in != 0)
        throw ValueError(kPrefix + "input: expected a multiple of N I = " + std::to_string(row_in) + " elements, got " +
                         std::to_string(input.size()));
    const std::size_t steps = input.size() / row_in;
    if (output.size() != steps * row_out)
        throw ValueError(kPrefix + "output: expected T N H = " + std::to_string(steps * row_out) + " elements, got " +
                         std::to_string(output.size()));
    step(input.data(), output.data(), static_cast<std::int64_t>(steps));
}

void Stream::step(std::span<const float> input, std::span<float> output) {
    checked_step(input, output, Dtype::float32);
}

void Stream::step(std::span<const double> input, std::span<double> output) {
    checked_step(input, output, Dtype::float64);
}

void Stream::reset() {
    const Turn turn(*this);
    check_usable();
    std::ranges::fill(scratch_, std::byte{0});
    for (std::size_t layer = 0; layer < layers(); ++layer)
        for (const Argument state : {init_state, init_cell})
            if (specs_[layer].has(state)) steps_->write(layer, state, scratch_.data());
}

void Stream::reset(std::span<const std::int64_t> rows) {
    for (const std::int64_t row : rows)
        if (row < 0 || row >= batch())
            throw ValueError(kPrefix + "rows: expected rows from 0 to " + std::to_string(batch() - 1) + ", got " +
                             std::to_string(row));
    const Turn turn(*this);
    check_usable();
    for (std::size_t layer = 0; layer < layers(); ++layer)
        for (const Argument state : {init_state, init_cell}) {
            if (!specs_[layer].has(state)) continue;
            const std::uint64_t each = state_bytes(specs_[layer], state) / static_cast<std::uint64_t>(batch());
            steps_->read(layer, state, scratch_.data());
            for (const std::int64_t row : rows)
                std::memset(scratch_.data() + static_cast<std::uint64_t>(row) * each, 0, each);
            steps_->write(layer, state, scratch_.data());
        }
}

void Stream::read_state(std::size_t layer, void* hidden, void* cell) {
    const Turn turn(*this);
    check_usable();
    steps_->read(layer, init_state, hidden);
    if (specs_.at(layer).has(init_cell)) steps_->read(layer, init_cell, cell);
}

void Stream::write_state(std::size_t layer, const void* hidden, const void* cell) {
    const Turn turn(*this);
    check_usable();
    steps_->write(layer, init_state, hidden);
    if (specs_.at(layer).has(init_cell)) steps_->write(layer, init_cell, cell);
}

}  // namespace vkrnn
