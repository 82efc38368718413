// Layers whose weights stay on a device, and fingerprints of arrays that show whether these have changed.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "bindings.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"
#include "vkrnn/fingerprint.h"
#include "vkrnn/prepared.h"

namespace vkrnn::python {
namespace {

const std::string kLayers = "[layers] ";

Dtype dtype_named(const std::string& name, const std::string& where) {
    for (const Dtype dtype : kDtypes)
        if (name_of(dtype) == name) return dtype;
    throw TypeError(where + "expected dtype float32, float64, float16 or bfloat16, got " + name);
}

// The fingerprint of C-contiguous arrays, which it keeps alive.
class PythonFingerprint {
public:
    explicit PythonFingerprint(std::vector<py::array> arrays)
        : arrays_(std::move(arrays)), fingerprint_(fingerprint_of(arrays_)) {}

    [[nodiscard]] bool unchanged() const {
        const EnvironmentCopy environment(kCallVariables);
        const Unlocked unlocked;
        return fingerprint_.unchanged();
    }

    // Neither changes nor needs the GIL.
    [[nodiscard]] bool unchanged(unsigned part, unsigned parts) const { return fingerprint_.unchanged(part, parts); }

private:
    static Fingerprint fingerprint_of(const std::vector<py::array>& arrays) {
        std::vector<std::span<const std::byte>> spans;
        for (const py::array& array : arrays) {
            if ((array.flags() & py::array::c_style) == 0)
                throw ValueError("[fingerprint] expected C-contiguous arrays");
            spans.emplace_back(static_cast<const std::byte*>(array.data()), static_cast<std::size_t>(array.nbytes()));
        }
        const EnvironmentCopy environment(kCallVariables);
        const Unlocked unlocked;
        return Fingerprint(spans);
    }

    std::vector<py::array> arrays_;
    Fingerprint fingerprint_;
};

class PythonLayers {
public:
    PythonLayers(const std::shared_ptr<Device>& device, const std::vector<PythonLayer>& layers) : device_(device) {
        std::vector<py::array> kept;
        const std::vector<NetworkLayer> made = read_layers(layers, kept, kLayers);
        {
            const Unlocked unlocked;
            layers_ = std::make_unique<PreparedLayers>(device, made);
        }
        dtype_ = kept.front().dtype();
    }

    // Runs the layers and returns the output [T, N, D H] and the last states. `owner` is the vkrnn.Device of the
    // device. Returns None if a fingerprint is given, and its arrays have changed.
    py::object run(const py::array& source, const std::optional<py::array>& hidden,
                   const std::optional<py::array>& cell, const py::object& owner, bool tf32,
                   const PythonFingerprint* fingerprint, const std::optional<py::array>& lengths) const {
        return run(source, hidden, cell, owner, tf32, fingerprint, lengths, false);
    }

    // If there is one direction, the output may have it as an axis: [T, 1, N, H].
    py::object run(const py::array& source, const std::optional<py::array>& hidden,
                   const std::optional<py::array>& cell, const py::object& owner, bool tf32,
                   const PythonFingerprint* fingerprint, const std::optional<py::array>& lengths,
                   bool has_direction) const {
        const Spec& spec = layers_->spec(0);
        const auto L = static_cast<py::ssize_t>(layers_->layers()), D = py::ssize_t{spec.D()},
                   C = py::ssize_t{spec.C()};
        if (source.ndim() != 3)
            throw ValueError(kLayers + "source: expected 3 axes, got " + std::to_string(source.ndim()));
        const py::ssize_t T = source.shape(0), N = source.shape(1), H = spec.H;
        const py::array from = checked(source, "source", dtype_, {T, N, py::ssize_t{spec.I}});
        if (fingerprint != nullptr && T * N > 1) {  // a longer call should not be made in vain
            if (!fingerprint->unchanged()) return py::none();
            fingerprint = nullptr;
        }
        LayersCall call{.T = T, .N = N, .source = from.data(), .tf32 = tf32};
        py::array states[2];
        if (hidden) call.hidden = (states[0] = checked(*hidden, "hidden", dtype_, {L * D, N, H})).data();
        if (cell) call.cell = (states[1] = checked(*cell, "cell", dtype_, {L * D, N, C * H})).data();
        py::array ends;
        if (lengths) {
            ends = checked(*lengths, "lengths", py::dtype::of<std::int32_t>(), {N});
            call.lengths = static_cast<const std::int32_t*>(ends.data());
        }

        std::vector<py::ssize_t> shape{T, N, D * H};
        if (has_direction) shape = {T, 1, N, H};
        const py::object output = allocate_for_host({owner, device_, nullptr, 0, dtype_, shape});
        const bool resident = py::isinstance<Array>(output);
        call.output = resident ? static_cast<void*>(output.cast<const Array&>().storage->host())
                               : output.cast<py::array>().mutable_data();
        py::list results;
        results.append(output);
        const auto add_last = [&](py::ssize_t width) {
            const py::array array(dtype_, {L * D, N, width});
            results.append(array);
            return const_cast<void*>(array.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
        };
        call.last_hidden = add_last(H);
        if (C > 0) call.last_cell = add_last(C * H);
        if (layers_->run_step(call)) {
            if (fingerprint != nullptr && !fingerprint->unchanged(0, 1)) return py::none();
        } else {
            std::atomic<bool> same = true;
            const auto compare = [&](unsigned part, unsigned parts) {
                if (!fingerprint->unchanged(part, parts)) same = false;
            };
            const EnvironmentCopy environment(kCallVariables);
            {
                const Unlocked unlocked;
                layers_->run(call, &interrupted, fingerprint != nullptr ? Share(compare) : Share());
            }
            if (!same) return py::none();
        }
        if (resident) results[0] = view(output.cast<const Array&>());
        return results;
    }

private:
    static py::array checked(const py::array& array, const char* name, const py::dtype& dtype,
                             const std::vector<py::ssize_t>& shape) {
        if (!array.dtype().is(dtype) && dtype_name(array.dtype()) != dtype_name(dtype))
            throw TypeError(kLayers + name + ": expected dtype " + dtype_name(dtype) + ", got " +
                            dtype_name(array.dtype()));
        if (!std::ranges::equal(shape, std::span(array.shape(), static_cast<std::size_t>(array.ndim()))) ||
            array.size() == 0)
            throw ValueError(kLayers + name + ": expected shape " + std::string(py::str(py::cast(shape))) + ", got " +
                             std::string(py::str(array.attr("shape"))));
        return plain(array);
    }

    std::shared_ptr<Device> device_;
    std::unique_ptr<PreparedLayers> layers_;
    py::dtype dtype_;
};

// The inputs and outputs of an ONNX node whose weights are constants.
class PythonNode {
public:
    // `weights` are the constants by their positions among the inputs, `lengths` and `states` the positions of those
    // inputs. `named` says which outputs have a name.
    PythonNode(std::vector<std::pair<std::size_t, py::object>> weights, std::size_t lengths,
               std::vector<std::size_t> states, std::vector<bool> named)
        : weights_(std::move(weights)), lengths_(lengths), states_(std::move(states)), named_(std::move(named)) {}

    // Returns whether the weights are the constants.
    [[nodiscard]] bool has_weights(const py::tuple& inputs) const {
        return std::ranges::all_of(weights_, [&](const auto& weight) {
            return weight.first < inputs.size() && inputs[weight.first].ptr() == weight.second.ptr();
        });
    }

    // Runs the layer of a node with one direction and layout 0. Returns the node's outputs, None for unnamed ones, or
    // None if the weights are others.
    py::object run(const py::tuple& inputs, const PythonLayers& layers, const py::object& owner, bool tf32) const {
        if (!has_weights(inputs)) return py::none();
        const auto given = [&](std::size_t at) -> std::optional<py::array> {
            if (at >= inputs.size() || inputs[at].is_none()) return std::nullopt;
            return array_of(inputs[at]);
        };
        std::optional<py::array> states[2];
        for (std::size_t i = 0; i < states_.size(); ++i) states[i] = given(states_[i]);
        const py::list found =
            layers.run(array_of(inputs[0]), states[0], states[1], owner, tf32, nullptr, given(lengths_), true);
        py::tuple outputs(std::min(found.size(), named_.size()));
        for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] = named_[i] ? py::object(found[i]) : py::none();
        return outputs;
    }

private:
    static py::array array_of(const py::object& object) {
        if (!py::isinstance<py::array>(object))
            throw TypeError(kLayers + "expected a numpy.ndarray, got " + type_name(object));
        return py::reinterpret_borrow<py::array>(object);
    }

    std::vector<std::pair<std::size_t, py::object>> weights_;
    std::size_t lengths_;
    std::vector<std::size_t> states_;
    std::vector<bool> named_;
};

}  // namespace

std::vector<NetworkLayer> read_layers(const std::vector<PythonLayer>& layers, std::vector<py::array>& kept,
                                      const std::string& prefix) {
    std::vector<NetworkLayer> made;
    for (const auto& [cell_name, arrays, descriptor] : layers) {
        const Cell* const cell = find_cell(cell_name);
        if (cell == nullptr) throw ValueError(prefix + "layers: expected the name of a cell, got '" + cell_name + "'");
        const std::string label = "layer " + std::to_string(made.size());
        const std::string where = message_prefix(*cell, false, label);
        NetworkLayer layer{read_descriptor(*cell, descriptor, where), {}};
        for (const auto& [key, value] : arrays) {
            const auto name = key.cast<std::string>();
            if (!py::isinstance<py::array>(value))
                throw TypeError(where + " " + name + ": expected a numpy.ndarray, got " + type_name(value));
            kept.push_back(plain(py::reinterpret_borrow<py::array>(value)));
            const py::array& array = kept.back();
            const Dtype dtype = dtype_named(dtype_name(array.dtype()), where + " " + name + ": ");
            layer.weights[argument_named(name, where)] = {
                array.data(), {array.shape(), array.shape() + array.ndim()}, dtype};
        }
        made.push_back(std::move(layer));
    }
    return made;
}

void register_layers(py::module_& module) {
    py::class_<PythonFingerprint>(module, "Fingerprint")
        .def(py::init<std::vector<py::array>>(), py::arg("arrays"))
        .def("unchanged", py::overload_cast<>(&PythonFingerprint::unchanged, py::const_));
    py::class_<PythonLayers>(module, "Layers")
        .def(py::init<const std::shared_ptr<Device>&, const std::vector<PythonLayer>&>(), py::arg("device"),
             py::arg("layers"))
        .def("run",
             py::overload_cast<const py::array&, const std::optional<py::array>&, const std::optional<py::array>&,
                               const py::object&, bool, const PythonFingerprint*, const std::optional<py::array>&>(
                 &PythonLayers::run, py::const_),
             py::arg("source"), py::arg("hidden"), py::arg("cell"), py::arg("owner"), py::arg("tf32") = false,
             py::arg("fingerprint") = nullptr, py::arg("lengths") = py::none(), py::call_guard<Inside>());
    py::class_<PythonNode>(module, "Node")
        .def(py::init<std::vector<std::pair<std::size_t, py::object>>, std::size_t, std::vector<std::size_t>,
                      std::vector<bool>>(),
             py::arg("weights"), py::arg("lengths"), py::arg("states"), py::arg("named"))
        .def("has_weights", &PythonNode::has_weights, py::arg("inputs"))
        .def("run", &PythonNode::run, py::arg("inputs"), py::arg("layers"), py::arg("owner"), py::arg("tf32") = false,
             py::call_guard<Inside>());
}

}  // namespace vkrnn::python
