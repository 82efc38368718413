// Layers whose weights stay on a device, and samples of arrays that show whether these have changed.
#include <algorithm>
#include <cstring>

#include "bindings.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"
#include "vkrnn/prepared.h"

namespace vkrnn::python {
namespace {

const std::string kLayers = "[layers] ";

Dtype dtype_named(const std::string& name, const std::string& where) {
    for (const Dtype dtype : kDtypes)
        if (name_of(dtype) == name) return dtype;
    throw TypeError(where + "expected dtype float32, float64, float16 or bfloat16, got " + name);
}

class PythonLayers {
public:
    PythonLayers(const std::shared_ptr<Device>& device, const std::vector<PythonLayer>& layers) : device_(device) {
        std::vector<py::array> kept;
        const std::vector<StreamLayer> made = read_layers(layers, kept, kLayers);
        {
            const Unlocked unlocked;
            layers_ = std::make_unique<PreparedLayers>(device, made);
        }
        dtype_ = kept.front().dtype();
        dtype_name_ = dtype_name(dtype_);
    }

    // Runs the layers and returns the output and the last states. `owner` is the vkrnn.Device of the device.
    py::list run(const py::array& source, const std::optional<py::array>& hidden, const std::optional<py::array>& cell,
                 const py::object& owner, bool tf32) const {
        const Spec& spec = layers_->spec(0);
        const auto L = static_cast<py::ssize_t>(layers_->layers()), D = py::ssize_t{spec.D()},
                   C = py::ssize_t{spec.C()};
        if (source.ndim() != 3)
            throw ValueError(kLayers + "source: expected 3 axes, got " + std::to_string(source.ndim()));
        const py::ssize_t T = source.shape(0), N = source.shape(1), H = spec.H;
        const py::array from = checked(source, "source", {T, N, py::ssize_t{spec.I}});
        LayersCall call{.T = T, .N = N, .source = from.data(), .tf32 = tf32};
        py::array states[2];
        if (hidden) call.hidden = (states[0] = checked(*hidden, "hidden", {L * D, N, H})).data();
        if (cell) call.cell = (states[1] = checked(*cell, "cell", {L * D, N, C * H})).data();

        const py::object output = allocate_for_host({owner, device_, nullptr, 0, dtype_, {T, N, D * H}});
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
        {
            const EnvironmentCopy environment(kCallVariables);
            const Unlocked unlocked;
            layers_->run(call, &interrupted);
        }
        if (resident) results[0] = view(output.cast<const Array&>());
        return results;
    }

private:
    [[nodiscard]] py::array checked(const py::array& array, const char* name,
                                    const std::array<py::ssize_t, 3>& shape) const {
        if (!array.dtype().is(dtype_) && dtype_name(array.dtype()) != dtype_name_)
            throw TypeError(kLayers + name + ": expected dtype " + dtype_name_ + ", got " + dtype_name(array.dtype()));
        if (!std::ranges::equal(shape, std::span(array.shape(), static_cast<std::size_t>(array.ndim()))) ||
            array.size() == 0)
            throw ValueError(kLayers + name + ": expected shape " + std::string(py::str(py::cast(shape))) + ", got " +
                             std::string(py::str(array.attr("shape"))));
        return plain(array);
    }

    std::shared_ptr<Device> device_;
    std::unique_ptr<PreparedLayers> layers_;
    py::dtype dtype_;
    std::string dtype_name_;
};

// Samples of arrays, to find out later whether the arrays have changed. A small array is sampled whole. A larger matrix
// is sampled along its diagonal, which wraps around at the last row and column, so that each row and column has a
// sample.
class Samples {
public:
    explicit Samples(std::vector<py::array> arrays) : arrays_(std::move(arrays)) {
        for (const py::array& array : arrays_)
            if ((array.flags() & py::array::c_style) == 0) throw ValueError("[samples] expected C-contiguous arrays");
        samples_.resize(copy_samples(nullptr));
        copy_samples(samples_.data());
    }

    [[nodiscard]] bool unchanged() const {
        std::size_t done = 0;
        bool same = true;
        for_each_run([&](const std::byte* at, std::size_t bytes) {
            same = same && std::memcmp(at, samples_.data() + done, bytes) == 0;
            done += bytes;
        });
        return same;
    }

private:
    static constexpr py::ssize_t kSmall = 16384;

    void for_each_run(const auto& visit) const {
        for (const py::array& array : arrays_) {
            const auto* const data = static_cast<const std::byte*>(array.data());
            if (array.nbytes() <= kSmall) {
                visit(data, static_cast<std::size_t>(array.nbytes()));
                continue;
            }
            const py::ssize_t rows = array.ndim() > 1 ? array.shape(0) : 1, columns = array.size() / rows;
            for (py::ssize_t i = 0; i < std::max(rows, columns); ++i)
                visit(data + (i % rows * columns + i % columns) * array.itemsize(),
                      static_cast<std::size_t>(array.itemsize()));
        }
    }

    std::size_t copy_samples(std::byte* to) const {
        std::size_t done = 0;
        for_each_run([&](const std::byte* at, std::size_t bytes) {
            if (to != nullptr) std::memcpy(to + done, at, bytes);
            done += bytes;
        });
        return done;
    }

    std::vector<py::array> arrays_;
    std::vector<std::byte> samples_;
};

}  // namespace

std::vector<StreamLayer> read_layers(const std::vector<PythonLayer>& layers, std::vector<py::array>& kept,
                                     const std::string& prefix) {
    std::vector<StreamLayer> made;
    for (const auto& [cell_name, arrays, descriptor] : layers) {
        const Cell* const cell = find_cell(cell_name);
        if (cell == nullptr) throw ValueError(prefix + "layers: expected the name of a cell, got '" + cell_name + "'");
        const std::string label = "layer " + std::to_string(made.size());
        const std::string where = message_prefix(*cell, false, label);
        StreamLayer layer{read_descriptor(*cell, descriptor, where), {}};
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
    py::class_<PythonLayers>(module, "Layers")
        .def(py::init<const std::shared_ptr<Device>&, const std::vector<PythonLayer>&>(), py::arg("device"),
             py::arg("layers"))
        .def("run", &PythonLayers::run, py::arg("source"), py::arg("hidden"), py::arg("cell"), py::arg("owner"),
             py::arg("tf32") = false, py::call_guard<Inside>());
    py::class_<Samples>(module, "Samples")
        .def(py::init<std::vector<py::array>>(), py::arg("arrays"))
        .def("unchanged", &Samples::unchanged);
}

}  // namespace vkrnn::python
