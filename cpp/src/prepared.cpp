#include "vkrnn/prepared.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "layer_check.h"
#include "stream_steps.h"
#include "vkrnn/error.h"
#include "vkrnn/strategy.h"

namespace vkrnn {
namespace {

using enum Argument;

const std::string kLayers = "[layers] ";

constexpr std::uint32_t bit(Argument argument) { return 1U << static_cast<unsigned>(argument); }

const std::byte* bytes_at(const void* data, std::int64_t offset) {
    return static_cast<const std::byte*>(data) + offset;
}
std::byte* bytes_at(void* data, std::int64_t offset) { return static_cast<std::byte*>(data) + offset; }

// Copies [D, N, W] to [N, D W], where W is in bytes.
std::vector<std::byte> side_by_side(const std::byte* states, std::int64_t D, std::int64_t N, std::int64_t W) {
    std::vector<std::byte> copy(static_cast<std::size_t>(D * N * W));
    for (std::int64_t d = 0; d < D; ++d)
        for (std::int64_t n = 0; n < N; ++n)
            std::memcpy(copy.data() + (n * D + d) * W, states + (d * N + n) * W, static_cast<std::size_t>(W));
    return copy;
}

// Returns whether each batch row has all steps. Throws ValueError if a length is out of range.
bool is_whole(const LayersCall& call) {
    if (call.lengths == nullptr) return true;
    const std::span lengths(call.lengths, static_cast<std::size_t>(call.N));
    for (std::size_t n = 0; n < lengths.size(); ++n)
        if (lengths[n] < 0 || lengths[n] > call.T)
            throw ValueError(kLayers + "lengths: expected 0 to T = " + std::to_string(call.T) + ", got " +
                             std::to_string(lengths[n]) + " at [" + std::to_string(n) + "]");
    return std::ranges::all_of(lengths, [&](std::int32_t length) { return length == call.T; });
}

}  // namespace

PreparedLayers::PreparedLayers(std::shared_ptr<Device> device, std::span<const StreamLayer> layers)
    : device_(std::move(device)) {
    if (layers.empty()) throw ValueError(kLayers + "expected at least one, got none");
    const std::vector<Spec> specs = check_layers(layers, 1);
    for (std::size_t i = 0; i < layers.size(); ++i) {
        if (specs[i].H != specs[0].H || specs[i].D() != specs[0].D() || specs[i].C() != specs[0].C())
            throw ValueError(kLayers + "expected layers of the same size and directions");
        Layer made{specs[i], {}, message_prefix(specs[i].cell(), false, {})};
        if (made.spec.C() > 0) made.spec.descriptor.set(Flag::produce_cell, true);
        for (const auto& [argument, tensor] : layers[i].weights) {
            const std::uint64_t bytes =
                static_cast<std::uint64_t>(elements_of(tensor.shape)) * storage_bytes(tensor.dtype);
            const std::shared_ptr<Storage> storage = device_->allocate(bytes, true);
            device_->upload({nullptr, storage}, tensor.data, bytes, {});
            made.weights.emplace(argument, storage);
        }
        layers_.push_back(std::move(made));
    }
}

PreparedLayers::~PreparedLayers() = default;

// Returns null if the device has no faster way than an ordinary call.
std::unique_ptr<StreamSteps> PreparedLayers::prepare_step() const {
    std::vector<StreamPart> parts;
    for (const Layer& layer : layers_) {
        StreamPart part{layer.spec, {}};
        part.spec.present |= bit(init_state);
        if (part.spec.C() > 0) part.spec.present |= bit(init_cell);
        for (const auto& [argument, storage] : layer.weights) part.weights.emplace(argument, storage->host());
        parts.push_back(std::move(part));
    }
    // A step carries the states of 16-bit layers in float32.
    const Spec& first = layers_[0].spec;
    if (first.D() > 1 || is_half(first.dtype) || device_->profile().backend != Backend::native) return nullptr;
    return device_->prepare_steps(parts, kSingleSteps);
}

bool PreparedLayers::run_step(const LayersCall& call) const { return run_prepared_step(call, nullptr, {}); }

bool PreparedLayers::run_prepared_step(const LayersCall& call, const Poll* poll, const Share& share) const {
    if (call.T != 1 || call.N != 1 || (call.lengths != nullptr && *call.lengths != 1) || device_->closed() ||
        step_in_use_.exchange(true, std::memory_order_acquire))
        return false;
    const struct Turn {
        std::atomic<bool>& in_use;
        ~Turn() { in_use.store(false, std::memory_order_release); }
    } turn{step_in_use_};
    const auto bytes = [&](Argument state) { return state_bytes(layers_[0].spec, state); };
    if (!step_is_prepared_) {
        step_is_prepared_ = true;
        try {
            zeros_.resize(std::max(bytes(init_state), bytes(init_cell)));
            step_ = prepare_step();
        } catch (const std::exception&) {  // as below
        }
    }
    if (step_ == nullptr || (poll == nullptr && !step_->is_simple())) return false;
    const auto write = [&](std::size_t i, Argument state, const void* all) {
        step_->write(i, state,
                     all == nullptr ? zeros_.data() : bytes_at(all, static_cast<std::int64_t>(i * bytes(state))));
    };
    const bool has_cell = layers_[0].spec.C() > 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        write(i, init_state, call.hidden);
        if (has_cell) write(i, init_cell, call.cell);
    }
    const Poll never;
    const Poll& polled = poll == nullptr ? never : *poll;
    try {
        if (share)
            step_->run_step(call.source, call.output, polled, share);
        else
            step_->run(call.source, call.output, 1, polled);
    } catch (const Interrupted&) {
        throw;
    } catch (const std::exception&) {  // the ordinary call needs less memory, or fails with a message
        return false;
    }
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        step_->read(i, init_state, bytes_at(call.last_hidden, static_cast<std::int64_t>(i * bytes(init_state))));
        if (has_cell)
            step_->read(i, init_cell, bytes_at(call.last_cell, static_cast<std::int64_t>(i * bytes(init_cell))));
    }
    return true;
}

void PreparedLayers::run(const LayersCall& given, const Poll& poll, const Share& share) const {
    LayersCall call = given;
    if (is_whole(call)) call.lengths = nullptr;
    // Without an initial state, an ordinary call leaves out the recurrent product.
    if (call.hidden != nullptr && run_prepared_step(call, &poll, share)) return;
    if (share) share(0, 1);
    InputLocation below{call.source};
    for (std::size_t i = 0; i < layers_.size(); ++i) run_layer(i, call, below, poll);
}

void PreparedLayers::run_layer(std::size_t number, const LayersCall& call, InputLocation& below,
                               const Poll& poll) const {
    const Layer& layer = layers_[number];
    Spec spec = layer.spec;
    spec.T = call.T;
    spec.N = call.N;
    if (call.hidden != nullptr) spec.present |= bit(init_state);
    if (call.cell != nullptr) spec.present |= bit(init_cell);
    if (call.lengths != nullptr) spec.present |= bit(lengths);
    spec = spec_on(spec, device_->profile(), call.tf32);

    const std::int64_t D = spec.D(), N = call.N;
    const auto element = static_cast<std::int64_t>(storage_bytes(spec.dtype));
    const std::int64_t hidden_width = spec.H * element, cell_width = spec.C() * hidden_width;
    const auto at = static_cast<std::int64_t>(number) * D * N;  // rows of the states of the layers before

    std::map<Argument, std::vector<std::byte>> states;  // initial states, both directions side by side
    const auto state_at = [&](Argument argument, const void* all, std::int64_t width) -> InputLocation {
        const std::byte* const own = bytes_at(all, at * width);
        if (D == 1) return {own};
        return {(states[argument] = side_by_side(own, D, N, width)).data()};
    };
    const std::shared_ptr<const Plan> plan = device_->plan(spec);
    // The CPU reads and writes the caller's memory in place.
    const bool on_host = device_->profile().backend == Backend::native;
    std::vector<std::size_t> existing;
    std::vector<InputLocation> inputs;
    for (const auto& [argument, buffer] : plan->inputs) {
        const bool stored = layer.weights.contains(argument) || (argument == source && below.storage);
        if (on_host || stored) existing.push_back(buffer);
        switch (argument) {
            case source: inputs.push_back(below); break;
            case init_state: inputs.push_back(state_at(argument, call.hidden, hidden_width)); break;
            case init_cell: inputs.push_back(state_at(argument, call.cell, cell_width)); break;
            case lengths: inputs.push_back({call.lengths}); break;
            default: inputs.push_back({nullptr, layer.weights.at(argument)});
        }
    }
    const bool last = number + 1 == layers_.size();
    if (on_host && last) existing.push_back(plan->results[0]);
    device_->require_room(*plan, plan->peak_bytes(existing), layer.label);
    // After a single step, the result is the last state. It is written to the caller's memory directly.
    const bool direct = last && call.T == 1 && D == 1 && call.lengths == nullptr;
    const auto rows = static_cast<std::uint64_t>(call.T * N * D);
    const auto allocate = [&](std::int64_t width) -> ResultLocation {
        return {nullptr, device_->allocate(rows * static_cast<std::uint64_t>(width), false)};
    };
    void* const last_hidden = bytes_at(call.last_hidden, at * hidden_width);
    void* const last_cell = spec.C() > 0 ? bytes_at(call.last_cell, at * cell_width) : nullptr;
    std::vector<ResultLocation> results{last ? ResultLocation{call.output} : allocate(hidden_width)};
    if (spec.C() > 0) results.push_back(direct ? ResultLocation{last_cell} : allocate(cell_width));
    device_->run(plan, inputs, results, last, layer.label, poll);

    below = {results[0].host, results[0].storage};
    const auto initial = [&](const void* all, std::int64_t width) {
        return all == nullptr ? nullptr : bytes_at(all, at * width);
    };
    save_last(spec, below, hidden_width, call.lengths, initial(call.hidden, hidden_width), last_hidden, poll);
    if (spec.C() > 0 && !direct)
        save_last(spec, {nullptr, results[1].storage}, cell_width, call.lengths, initial(call.cell, cell_width),
                  last_cell, poll);
}

// Copies the state after each direction's last step from [T, N, D W] to [D, N, W]. Rows without steps get the initial
// state.
void PreparedLayers::save_last(const Spec& spec, const InputLocation& rows, std::int64_t width,
                               const std::int32_t* lengths, const void* initial, void* to, const Poll& poll) const {
    const std::int64_t T = spec.T, N = spec.N, D = spec.D(), step = N * D * width;
    const auto bytes = static_cast<std::size_t>(width);
    std::vector<std::byte> copy;
    // Returns the address of `count` steps.
    const auto fetch = [&](std::int64_t first, std::int64_t count) -> const std::byte* {
        if (!rows.storage) return bytes_at(rows.host, first * step);
        copy.resize(static_cast<std::size_t>(count * step));
        device_->download(copy.data(), {nullptr, rows.storage, static_cast<std::uint64_t>(first * step)}, copy.size(),
                          poll);
        return copy.data();
    };
    for (std::int64_t d = 0; d < D; ++d) {
        const bool ends_differ = d == 0 && lengths != nullptr;  // the second direction ends at the first step
        const std::byte* const steps = fetch(d > 0 || ends_differ ? 0 : T - 1, ends_differ ? T : 1);
        for (std::int64_t n = 0; n < N; ++n) {
            const std::int64_t length = lengths == nullptr ? T : lengths[n], own = (d * N + n) * width;
            if (length > 0)
                std::memcpy(bytes_at(to, own), steps + (ends_differ ? length - 1 : 0) * step + (n * D + d) * width,
                            bytes);
            else if (initial != nullptr)
                std::memcpy(bytes_at(to, own), bytes_at(initial, own), bytes);
            else
                std::memset(bytes_at(to, own), 0, bytes);
        }
    }
}

}  // namespace vkrnn
