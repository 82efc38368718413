#include "vkrnn/stream.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "layer_check.h"
#include "run/stream_runner.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

using enum Argument;

const std::string kPrefix = "[stream] ";

// Throws NotImplementedError if an option needs the whole sequence.
void refuse_whole_sequences(const Descriptor& descriptor, const std::string& prefix) {
    const auto refuse = [&](Flag flag, const std::string& name) {
        if (!descriptor.has(flag)) return;
        throw NotImplementedError(prefix + name + ": expected False, got True; a stream runs forward in time");
    };
    refuse(Flag::bidirectional, "bidirectional");
    refuse(Flag::reverse, "reverse");
}

}  // namespace

// Keeps other threads out of the stream while the object exists. Throws Error if another thread is using it.
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

Stream::Stream(std::shared_ptr<Device> device, std::span<const NetworkLayer> layers, const StreamOptions& options)
    : device_(std::move(device)) {
    if (layers.empty()) throw ValueError(kPrefix + "layers: expected at least one, got none");
    if (options.batch < 1)
        throw ValueError(kPrefix + "batch: expected at least 1, got " + std::to_string(options.batch));
    check_usable();
    for (std::size_t i = 0; i < layers.size(); ++i)
        refuse_whole_sequences(layers[i].descriptor, layer_prefix(layers[i], i));
    specs_ = check_layers(layers, options.batch);
    std::vector<StreamPart> parts;
    std::uint64_t largest = 0, all = 0;
    for (Spec& spec : specs_) {
        spec.present |= 1U << static_cast<unsigned>(init_state);
        if (spec.C() > 0) spec.present |= 1U << static_cast<unsigned>(init_cell);
        StreamPart part{spec, {}};
        for (const auto& [argument, tensor] : layers[parts.size()].weights) part.weights.emplace(argument, tensor.data);
        parts.push_back(std::move(part));
        for (const Argument state : {init_state, init_cell})
            if (spec.has(state)) {
                const std::uint64_t bytes = state_bytes(spec, state);
                states_.push_back({parts.size() - 1, state, all, bytes});
                largest = std::max(largest, bytes);
                all += bytes;
            }
    }
    runner_ = device_->make_stream_runner(parts, options.threads);
    scratch_.resize(largest);
    start_.resize(all);
    reset();
}

Stream::~Stream() = default;

void Stream::check_usable() const {
    if (device_->closed()) throw DeviceError(kPrefix + "the device is closed; open a new vkrnn.Device");
}

void Stream::step(const void* input, void* output, std::int64_t steps, const Poll& poll,
                  std::span<const double> factors) {
    if (steps < 1) throw ValueError(kPrefix + "steps: expected at least 1, got " + std::to_string(steps));
    const Turn turn(*this);
    check_usable();
    if (factors.empty()) return runner_->run(input, output, steps, poll);
    if (factors.size() != static_cast<std::size_t>(steps * batch()))
        throw ValueError(kPrefix + "factors: expected " + std::to_string(steps * batch()) + ", got " +
                         std::to_string(factors.size()));
    const auto of_step = [&](std::int64_t step) {
        const auto rows = static_cast<std::size_t>(batch());
        return factors.subspan(static_cast<std::size_t>(step) * rows, rows);
    };
    const auto changes = [&](std::int64_t step) {
        return std::ranges::any_of(of_step(step), [](double factor) { return factor != 1; });
    };
    const std::uint64_t element = storage_bytes(dtype());
    std::vector<std::byte> before(start_.size());
    for (const StatePlace& each : states_) runner_->read(each.layer, each.state, before.data() + each.offset);
    try {
        for (std::int64_t begin = 0, end = 0; begin < steps; begin = end) {
            if (changes(begin)) blend(of_step(begin));
            for (end = begin + 1; end < steps && !changes(end);) ++end;
            runner_->run(
                static_cast<const std::byte*>(input) + element * static_cast<std::uint64_t>(begin * batch() * inputs()),
                static_cast<std::byte*>(output) + element * static_cast<std::uint64_t>(begin * batch() * outputs()),
                end - begin, poll);
        }
    } catch (...) {
        for (const StatePlace& each : states_) runner_->write(each.layer, each.state, before.data() + each.offset);
        throw;
    }
}

template <class T>
void Stream::blend_rows(std::span<const double> factors, const StatePlace& place) {
    auto* const state = reinterpret_cast<T*>(scratch_.data());
    const auto* const start = reinterpret_cast<const T*>(start_.data() + place.offset);
    const std::size_t width = place.bytes / sizeof(T) / factors.size();
    const auto part = [](T factor, T value) { return factor == 0 ? T{0} : factor * value; };
    const auto units = static_cast<std::size_t>(specs_[place.layer].H);
    const auto* const first = std::ranges::find(kStateTensors, place.state, &StateTensors::initial);
    for (std::size_t i = 0; i < factors.size() * width; ++i) {
        const double given = factors[i / width];
        // The stabilizer, one of the cell states side by side, is an exponent of the others, which are what is scaled.
        const bool is_exponent = first[i % width / units].initial == init_stabilizer;
        const T factor = is_exponent && given != 0 ? T{1} : static_cast<T>(given);
        state[i] = part(factor, state[i]) + part(T{1} - factor, start[i]);
    }
}

void Stream::blend(std::span<const double> factors) {
    for (const StatePlace& each : states_) {
        runner_->read(each.layer, each.state, scratch_.data());
        if (dtype() == Dtype::float64)
            blend_rows<double>(factors, each);
        else
            blend_rows<float>(factors, each);
        runner_->write(each.layer, each.state, scratch_.data());
    }
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
    for (const StatePlace& each : states_) runner_->write(each.layer, each.state, start_.data() + each.offset);
}

void Stream::reset(std::span<const std::int64_t> rows) {
    for (const std::int64_t row : rows)
        if (row < 0 || row >= batch())
            throw ValueError(kPrefix + "rows: expected rows from 0 to " + std::to_string(batch() - 1) + ", got " +
                             std::to_string(row));
    const Turn turn(*this);
    check_usable();
    for (const StatePlace& each : states_) {
        const std::uint64_t row_bytes = each.bytes / static_cast<std::uint64_t>(batch());
        runner_->read(each.layer, each.state, scratch_.data());
        for (const std::int64_t row : rows) {
            const std::uint64_t at = static_cast<std::uint64_t>(row) * row_bytes;
            std::memcpy(scratch_.data() + at, start_.data() + each.offset + at, row_bytes);
        }
        runner_->write(each.layer, each.state, scratch_.data());
    }
}

void Stream::set_start() {
    const Turn turn(*this);
    check_usable();
    for (const StatePlace& each : states_) runner_->read(each.layer, each.state, start_.data() + each.offset);
}

void Stream::check_count(std::size_t count) const {
    if (count != layers())
        throw ValueError(kPrefix + "state: expected " + std::to_string(layers()) + " layers, got " +
                         std::to_string(count));
}

void Stream::read_state(std::span<const LayerState<void*>> layers) {
    check_count(layers.size());
    const Turn turn(*this);
    check_usable();
    for (const StatePlace& each : states_) {
        const LayerState<void*>& to = layers[each.layer];
        runner_->read(each.layer, each.state, each.state == init_state ? to.hidden : to.cell);
    }
}

void Stream::write_state(std::span<const LayerState<const void*>> layers) {
    check_count(layers.size());
    const Turn turn(*this);
    check_usable();
    for (const StatePlace& each : states_) {
        const LayerState<const void*>& from = layers[each.layer];
        runner_->write(each.layer, each.state, each.state == init_state ? from.hidden : from.cell);
    }
}

}  // namespace vkrnn
