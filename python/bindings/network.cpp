// Networks: calls of several layers. vkrnn.Network is a class in Python around this one.
#include "vkrnn/network.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "bindings.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"

namespace vkrnn::python {
namespace {

const std::string kNetwork = "[network]";

// The arrays of a call, by what they are: numpy.ndarray or Array.
using Arrays = std::map<NetworkTensor, py::object>;

// A forward call that has been made: its results, and what its gradient call needs.
class NetworkForward {
public:
    const void* network = nullptr;  // that made it
    NetworkSpec spec;
    Arrays given, kept;
    py::object owner, dtype;
    bool resident = false, tf32 = false;

    [[nodiscard]] py::object result(std::size_t layer, Output output) const {
        const auto found = kept.find({layer, output});
        return found == kept.end() ? py::none() : shown(found->second);
    }
    // Returns a result as the caller gets it: a NumPy array unless the source is on the device.
    [[nodiscard]] py::object shown(const py::object& array) const {
        return resident || !py::isinstance<Array>(array) ? array : view(array.cast<const Array&>());
    }
    void for_each_object(const auto& visit) {
        visit(owner);
        visit(dtype);
        for (Arrays* const arrays : {&given, &kept})
            for (auto& [tensor, array] : *arrays) visit(array);
    }
};

py::object checked_array(const py::object& object, const std::string& name, const py::object& owner) {
    if (py::isinstance<Array>(object)) {
        if (!object.cast<const Array&>().owner.is(owner))
            throw ValueError(kNetwork + " " + name + ": expected an array on the network's device, got one on " +
                             provided("distinct_repr")(object.cast<const Array&>().owner, owner).cast<std::string>());
        return object;
    }
    if (!py::isinstance<py::array>(object))
        throw TypeError(kNetwork + " " + name + ": expected a numpy.ndarray or a vkrnn.Array, got " +
                        type_name(object));
    return object;
}

TensorInfo info_of_any(const py::object& object, Argument argument) {
    if (!py::isinstance<Array>(object)) return info_of(object.cast<py::array>(), argument);
    const auto& array = object.cast<const Array&>();
    return {dtype_name(array.dtype), {array.shape.begin(), array.shape.end()}, {}};
}

TensorShape shape_of_array(const py::object& object) { return info_of_any(object, Argument::reset).shape; }

class PythonNetwork {
public:
    PythonNetwork(const std::shared_ptr<Device>& device, const std::vector<PythonLayer>& layers) {
        for (const auto& [cell, arrays, descriptor] : layers)
            for (const auto& [name, array] : arrays) weights_.push_back(py::reinterpret_borrow<py::array>(array));
        const std::vector<NetworkLayer> made = read_layers(layers, plain_weights_, kNetwork + " ");
        const Unlocked unlocked;
        network_ = std::make_unique<Network>(device, made);
    }

    // Brings the device's weights up to date with the arrays that the layers were made from.
    void refresh() {
        for (std::size_t i = 0; i < weights_.size(); ++i)
            if (plain_weights_[i].ptr() != weights_[i].ptr())  // a copy
                py::module_::import("numpy").attr("copyto")(plain_weights_[i], weights_[i]);
        const Unlocked unlocked;
        network_->refresh();
    }

    // `layers` has a dict for each layer with its initial states and its mask; that of layer 0 also has the source and
    // the lengths. `between` has the masks between layers, or None.
    NetworkForward forward(const std::vector<py::dict>& layers, const std::vector<py::object>& between, bool training,
                           const py::object& owner, bool tf32) const {
        NetworkForward made = checked(layers, between, training, owner, tf32);
        const std::size_t last = network_->layers() - 1;
        run(
            made.spec, made, made.given,
            [&](const NetworkTensor& tensor) {
                const Output output = std::get<Output>(tensor.what);
                const auto* const state = std::ranges::find(kStateTensors, output, &StateTensors::sequence);
                const bool internal = output == Output::z_state ||
                                      (output == Output::output ? tensor.layer < last : state != kStateTensors.end());
                return allocate(shape_of(made.spec.layers[tensor.layer], output), made, internal || made.resident);
            },
            made.kept);
        return made;
    }

    // Returns the plan of a call with the same arguments.
    [[nodiscard]] SharedPlan plan_forward(const std::vector<py::dict>& layers, const std::vector<py::object>& between,
                                          bool training, const py::object& owner, bool tf32) const {
        const NetworkForward made = checked(layers, between, training, owner, tf32);
        const Unlocked unlocked;
        return {network_->plan(made.spec, tf32)->plan, {}};
    }

    // Returns a dict of gradients for each layer. `layers` has a dict for each layer with its upstream gradients.
    py::list gradients(const NetworkForward& forward, const py::object& source_gradient,
                       const std::vector<py::dict>& layers) const {
        const auto made = checked_gradients(forward, source_gradient, layers);
        const NetworkSpec& spec = made.first;
        const Arrays& given = made.second;
        Arrays results;
        run(
            spec, forward, given,
            [&](const NetworkTensor& tensor) {
                const Spec& layer = spec.layers[tensor.layer];
                const auto argument = std::get<Argument>(tensor.what);
                const TensorShape shape =
                    argument == Argument::reset ? shape_of_array(given.at({0, argument})) : shape_of(layer, argument);
                return allocate(shape, forward, forward.resident);
            },
            results);
        py::list found;
        for (std::size_t l = 0; l < network_->layers(); ++l) {
            py::dict of_layer;
            for (const Argument argument : gradient_order_of(spec.layers[l]))
                if (const auto result = results.find({l, argument}); result != results.end())
                    of_layer[to_python(name_of(argument))] = forward.shown(result->second);
            found.append(std::move(of_layer));
        }
        return found;
    }

    // Returns the plan of a call with the same arguments.
    [[nodiscard]] SharedPlan plan_gradients(const NetworkForward& forward, const py::object& source_gradient,
                                            const std::vector<py::dict>& layers) const {
        const NetworkSpec spec = checked_gradients(forward, source_gradient, layers).first;
        const Unlocked unlocked;
        return {network_->plan(spec, forward.tf32)->plan, {}};
    }

private:
    // Returns a forward call that has not been made.
    NetworkForward checked(const std::vector<py::dict>& layers, const std::vector<py::object>& between, bool training,
                           const py::object& owner, bool tf32) const {
        NetworkForward made;
        made.network = this;
        made.owner = owner;
        made.tf32 = tf32;
        NetworkArguments arguments;
        if (training) arguments.trained = 0;
        for (std::size_t l = 0; l < layers.size(); ++l)
            arguments.layers.push_back(read(layers[l], l, owner, made.given));
        for (std::size_t l = 0; l < between.size(); ++l) {
            arguments.between.emplace_back();
            if (between[l].is_none()) continue;
            const py::object mask = checked_array(between[l], "between[" + std::to_string(l) + "]", owner);
            arguments.between.back() = info_of_any(mask, Argument::mask);
            made.given[{l, Between{}}] = mask;
        }
        made.spec = network_->check(arguments);
        const py::object& source = made.given.at({0, Argument::source});
        made.resident = py::isinstance<Array>(source);
        made.dtype = made.resident ? source.cast<const Array&>().dtype : source.cast<py::array>().dtype();
        made.dtype = made.dtype.attr("newbyteorder")("=");
        return made;
    }

    // Returns the spec and the arrays of a gradient call.
    std::pair<NetworkSpec, Arrays> checked_gradients(const NetworkForward& forward, const py::object& source_gradient,
                                                     const std::vector<py::dict>& layers) const {
        if (forward.network != this)
            throw ValueError(kNetwork + " result: expected one of this network, got one of another network");
        Arrays given = forward.given;
        given.insert(forward.kept.begin(), forward.kept.end());
        NetworkUpstream upstream;
        for (std::size_t l = 0; l < layers.size(); ++l)
            upstream.layers.push_back(read(layers[l], l, forward.owner, given));
        if (!source_gradient.is_none()) {
            const py::object array = checked_array(source_gradient, "source_gradient", forward.owner);
            upstream.source_gradient = info_of_any(array, Argument::source_gradient);
            given[{network_->layers() - 1, Argument::source_gradient}] = array;
        }
        return {check_network_gradients(forward.spec, upstream), std::move(given)};
    }

    // Reads the arguments of a layer, and adds their arrays to `given`.
    Arguments read(const py::dict& layer, std::size_t number, const py::object& owner, Arrays& given) const {
        Arguments found;
        for (const auto& [key, value] : layer) {
            const auto name = key.cast<std::string>();
            const Argument argument = argument_named(name, kNetwork);
            const py::object array = checked_array(py::reinterpret_borrow<py::object>(value), name, owner);
            TensorInfo info = info_of_any(array, argument);
            given[{number, argument}] = info.integers.empty() ? array : as_int32(info.integers);
            found[argument] = std::move(info);
        }
        return found;
    }

    py::object allocate(const TensorShape& shape, const NetworkForward& forward, bool resident) const {
        Array made{forward.owner,
                   network_->device(),
                   nullptr,
                   0,
                   forward.dtype.cast<py::dtype>(),
                   {shape.begin(), shape.end()}};
        return resident ? py::cast(python::allocate(std::move(made), false)) : allocate_for_host(std::move(made));
    }

    // Runs a call and stores its results.
    void run(const NetworkSpec& spec, const NetworkForward& forward, const Arrays& given, const auto& allocated,
             Arrays& results) const {
        std::shared_ptr<const NetworkPlan> plan;
        {
            const Unlocked unlocked;
            plan = network_->plan(spec, forward.tf32);
        }
        const Device& device = *network_->device();
        const auto buffer = [&](std::size_t index) -> const PlanBuffer& { return plan->plan->buffers.at(index); };
        std::vector<py::array> kept;
        std::map<NetworkTensor, InputLocation> from;
        std::map<NetworkTensor, ResultLocation> to;
        for (std::size_t i = 0; i < plan->inputs.size(); ++i)
            if (const auto found = given.find(plan->inputs[i]); found != given.end())  // else it is a weight
                from[found->first] = input_location(device, buffer(plan->plan->inputs[i].second), found->second, kept);
        for (std::size_t i = 0; i < plan->results.size(); ++i) {
            const py::object array = allocated(plan->results[i]);
            to[plan->results[i]] = result_location(device, buffer(plan->plan->results[i]), array);
            results[plan->results[i]] = array;
        }
        const EnvironmentCopy environment(kCallVariables);
        const Unlocked unlocked;
        network_->run(
            *plan, [&](const NetworkTensor& tensor) { return from.at(tensor); },
            [&](const NetworkTensor& tensor) { return to.at(tensor); }, !forward.resident, &interrupted);
    }

    // The caller's weights, and the same as C-contiguous arrays, which are others if they had to be copied.
    std::vector<py::array> weights_, plain_weights_;
    std::unique_ptr<Network> network_;
};

}  // namespace

void register_network(py::module_& module) {
    py::class_<NetworkForward>(module, "NetworkForward", collected<NetworkForward>())
        .def(
            "result",
            [](const NetworkForward& forward, std::size_t layer, const std::string& name) {
                for (std::size_t i = 0; i < kOutputs; ++i)
                    if (name_of(static_cast<Output>(i)) == name) return forward.result(layer, static_cast<Output>(i));
                throw ValueError(kNetwork + " expected the name of a result, got '" + name + "'");
            },
            py::arg("layer"), py::arg("name"));
    py::class_<PythonNetwork>(module, "Network")
        .def(py::init<const std::shared_ptr<Device>&, const std::vector<PythonLayer>&>(), py::arg("device"),
             py::arg("layers"))
        .def("forward", &PythonNetwork::forward, py::arg("layers"), py::arg("between"), py::arg("training"),
             py::arg("owner"), py::arg("tf32"), py::call_guard<Inside>())
        .def("gradients", &PythonNetwork::gradients, py::arg("forward"), py::arg("source_gradient"), py::arg("layers"),
             py::call_guard<Inside>())
        .def("plan_forward", &PythonNetwork::plan_forward, py::arg("layers"), py::arg("between"), py::arg("training"),
             py::arg("owner"), py::arg("tf32"), py::call_guard<Inside>())
        .def("plan_gradients", &PythonNetwork::plan_gradients, py::arg("forward"), py::arg("source_gradient"),
             py::arg("layers"), py::call_guard<Inside>())
        .def("refresh", &PythonNetwork::refresh, py::call_guard<Inside>());
}

}  // namespace vkrnn::python
