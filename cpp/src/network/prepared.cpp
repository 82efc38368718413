#include "vkrnn/prepared.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/fork_safe_mutex.h"
#include "run/stream_runner.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

using enum Argument;

const std::string kLayers = "[layers] ";
constexpr std::size_t kMostKinds = 64;

constexpr std::uint32_t bit(Argument argument) { return 1U << static_cast<unsigned>(argument); }

const std::byte* bytes_at(const void* data, std::int64_t offset) {
    return static_cast<const std::byte*>(data) + offset;
}
std::byte* bytes_at(void* data, std::int64_t offset) { return static_cast<std::byte*>(data) + offset; }

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

// Plans of the latest kinds of calls, so that a call need not be checked again.
struct PreparedLayers::Plans {
    // What the plan of a call depends on.
    struct Kind {
        std::int64_t T, N;
        bool hidden, cell, lengths, tf32;
        auto operator<=>(const Kind&) const = default;
    };
    ForkSafeMutex mutex;
    std::map<Kind, std::shared_ptr<const NetworkPlan>> by_kind;
};

PreparedLayers::PreparedLayers(std::shared_ptr<Device> device, std::span<const NetworkLayer> layers)
    : network_(std::move(device), layers), plans_(std::make_unique<Plans>()) {
    const Spec& first = spec(0);
    for (std::size_t i = 0; i < this->layers(); ++i)
        if (spec(i).H != first.H || spec(i).D() != first.D() || spec(i).C() != first.C())
            throw ValueError(kLayers + "expected layers of the same size and directions");
}

PreparedLayers::~PreparedLayers() = default;

// Returns null if the device has no faster way than an ordinary call.
std::unique_ptr<StreamRunner> PreparedLayers::make_runner() const {
    std::vector<StreamPart> parts;
    for (std::size_t i = 0; i < layers(); ++i) {
        StreamPart part{spec(i), {}};
        for (const auto& [argument, weight] : network_.weights(i)) part.weights.emplace(argument, weight->host());
        part.spec.present |= bit(init_state);
        if (part.spec.C() > 0) part.spec.present |= bit(init_cell);
        parts.push_back(std::move(part));
    }
    // A step carries the states of 16-bit layers in float32.
    if (spec(0).D() > 1 || is_half(spec(0).dtype) || device().profile().backend != Backend::native) return nullptr;
    return device().make_stream_runner(parts, kSingleSteps);
}

bool PreparedLayers::run_step(const LayersCall& call) const { return run_prepared_step(call, nullptr, {}); }

bool PreparedLayers::run_prepared_step(const LayersCall& call, const Poll* poll, const Share& share) const {
    if (call.T != 1 || call.N != 1 || (call.lengths != nullptr && *call.lengths != 1) || device().closed() ||
        runner_in_use_.exchange(true, std::memory_order_acquire))
        return false;
    const struct Turn {
        std::atomic<bool>& in_use;
        ~Turn() { in_use.store(false, std::memory_order_release); }
    } turn{runner_in_use_};
    const auto bytes = [&](Argument state) { return state_bytes(spec(0), state); };
    if (!runner_is_made_) {
        runner_is_made_ = true;
        try {
            zeros_.resize(std::max(bytes(init_state), bytes(init_cell)));
            runner_ = make_runner();
        } catch (const std::exception&) {  // as below
        }
    }
    if (runner_ == nullptr || (poll == nullptr && !runner_->is_simple())) return false;
    const auto write = [&](std::size_t i, Argument state, const void* all) {
        runner_->write(i, state,
                       all == nullptr ? zeros_.data() : bytes_at(all, static_cast<std::int64_t>(i * bytes(state))));
    };
    const bool has_cell = spec(0).C() > 0;
    for (std::size_t i = 0; i < layers(); ++i) {
        write(i, init_state, call.hidden);
        if (has_cell) write(i, init_cell, call.cell);
    }
    const Poll never;
    const Poll& polled = poll == nullptr ? never : *poll;
    try {
        if (share)
            runner_->run_step(call.source, call.output, polled, share);
        else
            runner_->run(call.source, call.output, 1, polled);
    } catch (const Interrupted&) {
        throw;
    } catch (const std::exception&) {  // the ordinary call needs less memory, or fails with a message
        return false;
    }
    for (std::size_t i = 0; i < layers(); ++i) {
        runner_->read(i, init_state, bytes_at(call.last_hidden, static_cast<std::int64_t>(i * bytes(init_state))));
        if (has_cell)
            runner_->read(i, init_cell, bytes_at(call.last_cell, static_cast<std::int64_t>(i * bytes(init_cell))));
    }
    return true;
}

std::shared_ptr<const NetworkPlan> PreparedLayers::plan_of(const LayersCall& call) const {
    const Plans::Kind kind{call.T,   call.N, call.hidden != nullptr, call.cell != nullptr, call.lengths != nullptr,
                           call.tf32};
    {
        const std::lock_guard lock(plans_->mutex);
        if (const auto found = plans_->by_kind.find(kind); found != plans_->by_kind.end()) return found->second;
    }
    NetworkArguments arguments{std::vector<Arguments>(layers())};
    const Spec& first = spec(0);
    const auto info = [&](const TensorShape& shape) {
        return TensorInfo{std::string(name_of(first.dtype)), shape, {}};
    };
    arguments.layers[0][source] = info({call.T, call.N, first.I});
    if (call.lengths != nullptr) arguments.layers[0][lengths] = {"int32", {call.N}, {}};
    for (Arguments& layer : arguments.layers) {
        if (call.hidden != nullptr) layer[init_state] = info({first.D(), call.N, first.H});
        if (call.cell != nullptr) layer[init_cell] = info({first.D(), call.N, first.C() * first.H});
    }
    arguments.form.torch_layout = arguments.form.joined_cells = true;
    auto made = network_.plan(network_.check(arguments), call.tf32);
    const std::lock_guard lock(plans_->mutex);
    if (plans_->by_kind.size() >= kMostKinds) plans_->by_kind.clear();
    return plans_->by_kind.try_emplace(kind, std::move(made)).first->second;
}

void PreparedLayers::run(const LayersCall& given, const Poll& poll, const Share& share) const {
    LayersCall call = given;
    if (is_whole(call)) call.lengths = nullptr;
    // Without an initial state, an ordinary call leaves out the recurrent product.
    if (call.hidden != nullptr && run_prepared_step(call, &poll, share)) return;
    if (share) share(0, 1);
    const auto offset = [&](std::size_t layer, bool is_cell) {
        const std::int64_t elements = call.N * spec(0).D() * spec(0).H * (is_cell ? spec(0).C() : 1);
        return static_cast<std::int64_t>(layer * storage_bytes(spec(0).dtype)) * elements;
    };
    network_.run(
        *plan_of(call),
        [&](const NetworkTensor& tensor) -> InputLocation {
            const Argument argument = std::get<Argument>(tensor.what);
            if (argument == source) return {call.source};
            if (argument == lengths) return {call.lengths};
            const bool is_cell = argument == init_cell;
            return {bytes_at(is_cell ? call.cell : call.hidden, offset(tensor.layer, is_cell))};
        },
        [&](const NetworkTensor& tensor) -> ResultLocation {
            const Output output = std::get<Output>(tensor.what);
            if (output == Output::output) return {call.output};
            const bool is_cell = output == Output::last_cell;
            return {bytes_at(is_cell ? call.last_cell : call.last_hidden, offset(tensor.layer, is_cell))};
        },
        true, poll, message_prefix(spec(0).cell(), false, {}));
}

}  // namespace vkrnn
