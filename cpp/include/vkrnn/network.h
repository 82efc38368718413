// Networks: recurrent layers, each fed by the one below, whose weights stay on a device from call to call.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vkrnn/device.h"
#include "vkrnn/network_layer.h"
#include "vkrnn/network_plan.h"

namespace vkrnn {

// What the caller gives to a forward call of a network, without the data. `layers` has, for each layer, the initial
// states, the mask, and the weights unless the network keeps them; layer 0 also has the source and the lengths.
// `between` has the masks between layers, by the layer below; it may be shorter than the layers.
struct NetworkArguments {
    std::vector<Arguments> layers;
    std::vector<std::optional<TensorInfo>> between{};
    std::size_t trained = static_cast<std::size_t>(-1);  // the first layer for which gradients can follow, if any
    CallForm form{};
};

// The upstream gradients of a gradient call. `layers` has state_gradient and cell_gradient of each layer. If sequences
// are packed, layer 0 also has the lengths.
struct NetworkUpstream {
    std::optional<TensorInfo> source_gradient{};
    std::vector<Arguments> layers;
};

// Return the specs of a network's calls, whose layers have these options. Throw TypeError or ValueError about the
// arguments.
NetworkSpec check_network(std::span<const Descriptor> layers, const NetworkArguments& arguments);
NetworkSpec check_network_gradients(const NetworkSpec& forward, const NetworkUpstream& upstream);

// Thread-safe.
class Network {
public:
    // Copies the weights to the device. They must stay where they are as long as refresh() is called. Throws TypeError
    // or ValueError about the layers, MemoryError and DeviceError.
    Network(std::shared_ptr<Device> device, std::span<const NetworkLayer> layers);
    ~Network();
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;

    // As check_network(), with this network's layers.
    [[nodiscard]] NetworkSpec check(NetworkArguments arguments) const;

    // Returns the plan of a call, from a cache if possible. `tf32`: float32 products may be rounded.
    [[nodiscard]] std::shared_ptr<const NetworkPlan> plan(const NetworkSpec& spec, bool tf32) const;

    // Runs a plan. `input` and `result` return where the call's tensors are; weights are not asked for. For `wait`,
    // `label` and what is thrown, see Device::run.
    void run(const NetworkPlan& made, const std::function<InputLocation(const NetworkTensor&)>& input,
             const std::function<ResultLocation(const NetworkTensor&)>& result, bool wait, const Poll& poll,
             std::string_view label = "[network]") const;

    // Copies the weights again if a hash of 128 bits over the host's memory, where the layers said that they are, shows
    // that they have changed. Calls that run in other threads may read the old or the new ones.
    void refresh();

    [[nodiscard]] std::size_t layers() const { return layers_.size(); }
    // Returns the spec of a call of one step and one batch row.
    [[nodiscard]] const Spec& spec(std::size_t layer) const { return layers_.at(layer).spec; }
    // Returns the weights of a layer, as the device keeps them.
    [[nodiscard]] std::map<Argument, std::shared_ptr<Storage>> weights(std::size_t layer) const;
    [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }

private:
    struct Weight {
        TensorInfo info;
        const void* host;
        std::shared_ptr<Storage> storage;
    };
    struct Layer {
        Spec spec;
        std::map<Argument, Weight> weights;
    };
    struct Shared;

    std::shared_ptr<Device> device_;
    std::vector<Layer> layers_;
    std::unique_ptr<Shared> shared_;
};

}  // namespace vkrnn
