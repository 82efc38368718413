#include "vkrnn/network.h"

#include <mutex>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "layer_check.h"
#include "vkrnn/error.h"
#include "vkrnn/fingerprint.h"
#include "vkrnn/run.h"

namespace vkrnn {
namespace {

using enum Argument;

const std::string kLabel = "[network]";
constexpr std::size_t kMostPlans = 64;

std::uint64_t bytes_of(const TensorShape& shape, Dtype dtype) {
    return static_cast<std::uint64_t>(elements_of(shape)) * storage_bytes(dtype);
}

}  // namespace

// What threads share. The mutex is held for moments only, so that a fork need not wait for a device.
struct Network::Shared {
    ForkSafeMutex mutex;
    std::map<std::pair<NetworkSpec, bool>, std::shared_ptr<const NetworkPlan>> plans;  // by spec and tf32
    // Of the weights that the device has; null if it is not known which these are.
    std::shared_ptr<const Fingerprint> fingerprint;
    std::uint64_t refreshes = 0;  // that have begun to copy weights
    unsigned refreshing = 0;      // of these, those that have not ended
};

Network::Network(std::shared_ptr<Device> device, std::span<const NetworkLayer> layers)
    : device_(std::move(device)), shared_(std::make_unique<Shared>()) {
    if (layers.empty()) throw ValueError(kLabel + " layers: expected at least one, got none");
    const std::vector<Spec> specs = check_layers(layers, 1);
    for (std::size_t l = 0; l < layers.size(); ++l) {
        Layer made{specs[l], {}};
        for (const auto& [argument, tensor] : layers[l].weights) {
            const std::uint64_t bytes = bytes_of(tensor.shape, tensor.dtype);
            Weight weight{
                {std::string(name_of(tensor.dtype)), tensor.shape, {}}, tensor.data, device_->allocate(bytes, true)};
            device_->upload({nullptr, weight.storage}, tensor.data, bytes, {});
            made.weights.emplace(argument, std::move(weight));
        }
        layers_.push_back(std::move(made));
    }
}

Network::~Network() = default;

std::map<Argument, std::shared_ptr<Storage>> Network::weights(std::size_t layer) const {
    std::map<Argument, std::shared_ptr<Storage>> found;
    for (const auto& [argument, weight] : layers_.at(layer).weights) found.emplace(argument, weight.storage);
    return found;
}

void Network::refresh() {
    std::shared_ptr<const Fingerprint> known;
    {
        const std::lock_guard lock(shared_->mutex);
        known = shared_->fingerprint;
    }
    if (known && known->unchanged()) return;
    std::uint64_t number = 0;
    bool alone = false;
    {
        const std::lock_guard lock(shared_->mutex);
        shared_->fingerprint.reset();
        number = ++shared_->refreshes;
        alone = shared_->refreshing++ == 0;
    }
    // If another thread copies at the same time, it is not known whose numbers are last, so the next call copies again.
    const auto end = [&](std::shared_ptr<const Fingerprint> made) {
        const std::lock_guard lock(shared_->mutex);
        --shared_->refreshing;
        if (alone && shared_->refreshes == number) shared_->fingerprint = std::move(made);
    };
    try {
        // Hashed before they are copied, so that a change in between is found by the next call.
        std::vector<std::span<const std::byte>> arrays;
        for (const Layer& layer : layers_)
            for (const auto& [argument, weight] : layer.weights)
                arrays.emplace_back(static_cast<const std::byte*>(weight.host), weight.storage->bytes());
        auto made = std::make_shared<const Fingerprint>(arrays);
        for (const Layer& layer : layers_)
            for (const auto& [argument, weight] : layer.weights)
                device_->upload({nullptr, weight.storage}, weight.host, weight.storage->bytes(), {});
        end(std::move(made));
    } catch (...) {
        end(nullptr);
        throw;
    }
}

NetworkSpec Network::check(NetworkArguments arguments) const {
    std::vector<Descriptor> descriptors;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
        descriptors.push_back(layers_[l].spec.descriptor);
        if (l >= arguments.layers.size()) continue;
        for (const auto& [argument, weight] : layers_[l].weights)
            if (!arguments.layers[l].emplace(argument, weight.info).second)
                throw ValueError(kLabel + " " + std::string(name_of(argument)) + "[" + std::to_string(l) +
                                 "]: expected none, because the layer has one, got an array");
    }
    return check_network(descriptors, arguments);
}

std::shared_ptr<const NetworkPlan> Network::plan(const NetworkSpec& spec, bool tf32) const {
    const std::pair<NetworkSpec, bool> key{spec, tf32};
    {
        const std::lock_guard lock(shared_->mutex);
        if (const auto found = shared_->plans.find(key); found != shared_->plans.end()) return found->second;
    }
    auto made = std::make_shared<const NetworkPlan>(device_->plan_network(spec, tf32));
    const std::lock_guard lock(shared_->mutex);
    if (shared_->plans.size() >= kMostPlans) shared_->plans.clear();
    return shared_->plans.try_emplace(key, std::move(made)).first->second;
}

void Network::run(const NetworkPlan& made, const std::function<InputLocation(const NetworkTensor&)>& input,
                  const std::function<ResultLocation(const NetworkTensor&)>& result, bool wait, const Poll& poll,
                  std::string_view label) const {
    std::vector<InputLocation> inputs;
    for (const NetworkTensor& tensor : made.inputs) {
        const auto& weights = layers_.at(tensor.layer).weights;
        const auto* const argument = std::get_if<Argument>(&tensor.what);
        const auto found = argument != nullptr ? weights.find(*argument) : weights.end();
        inputs.push_back(found != weights.end() ? InputLocation{nullptr, found->second.storage} : input(tensor));
    }
    std::vector<ResultLocation> results;
    for (const NetworkTensor& tensor : made.results) results.push_back(result(tensor));
    run_plan(*device_, made.plan, inputs, results, wait, label, poll);
}

}  // namespace vkrnn
