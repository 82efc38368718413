// Streams: each step of the recurrent layers is one call on NumPy arrays. vkrnn.Stream is a subclass in Python.
#include "vkrnn/stream.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "bindings.h"
#include "vkrnn/error.h"

namespace vkrnn::python {
namespace {

using py::literals::operator""_a;

const std::string kPrefix = "[stream] ";

std::string text_of(const py::array& array) {
    std::string text;
    for (py::ssize_t axis = 0; axis < array.ndim(); ++axis)
        text += (axis > 0 ? ", " : "") + std::to_string(array.shape(axis));
    return "[" + text + "]";
}

class PythonStream {
public:
    PythonStream(const std::shared_ptr<Device>& device, const std::vector<PythonLayer>& layers, std::int64_t batch,
                 unsigned threads) {
        std::vector<py::array> kept;
        const std::vector<NetworkLayer> made = read_layers(layers, kept, kPrefix);
        {
            const Unlocked unlocked;
            stream_ = std::make_unique<Stream>(device, made, StreamOptions{batch, threads});
        }
        dtype_ = kept.front().dtype();
        state_dtype_ = stream_->dtype() == Dtype::float64 ? py::dtype::of<double>() : py::dtype::of<float>();
        for (std::size_t i = 0; i < stream_->layers(); ++i) {
            const Spec& spec = stream_->spec(i);
            step_flops_ +=
                2.0 * static_cast<double>(spec.N * spec.G() * spec.H * (spec.head_units() + spec.head_features()));
        }
        if (device->profile().backend != Backend::native) step_flops_ = kLongFlops;
    }

    py::object step(const py::object& x, const py::object& out, const py::object& reset) {
        const py::array input = input_of(x);
        const bool block = input.ndim() == 3;
        const std::int64_t steps = block ? input.shape(0) : 1;
        const py::array output = out.is_none() ? new_output(steps, block) : output_of(out, input);
        const std::vector<double> factors = factors_of(reset, input);
        const void* const from = input.data();
        void* const to = const_cast<void*>(output.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
        if (step_flops_ * static_cast<double>(steps) < kLongFlops) {
            stream_->step(from, to, steps, {}, factors);
        } else {
            const Unlocked unlocked;
            stream_->step(from, to, steps, &interrupted, factors);
        }
        return output;
    }

    py::tuple state() {
        py::tuple all(stream_->layers());
        std::vector<LayerState<void*>> places;
        for (std::size_t i = 0; i < stream_->layers(); ++i) {
            const py::array hidden(state_dtype_, state_shape(i, Argument::init_state));
            places.push_back({data_of(hidden), nullptr});
            if (!has_cell(i)) {
                all[i] = py::make_tuple(hidden);
                continue;
            }
            const py::array cell(state_dtype_, state_shape(i, Argument::init_cell));
            places.back().cell = data_of(cell);
            all[i] = py::make_tuple(hidden, cell);
        }
        stream_->read_state(places);
        for (std::size_t i = 0; i < stream_->layers(); ++i)
            if (cells(i) > 1) all[i] = split(all[i], cells(i));
        return all;
    }

    // Checks the whole state before it writes any of it.
    void set_state(const py::object& value) {
        const std::vector<py::object> layers = items_of(value, "state", stream_->layers(), "of each layer");
        std::vector<py::array> all;  // keeps the memory
        std::vector<LayerState<const void*>> places;
        for (std::size_t i = 0; i < layers.size(); ++i) {
            const std::string where = "state[" + std::to_string(i) + "]";
            const std::size_t count = cells(i);
            const std::vector<py::object> some = items_of(layers[i], where, 1 + count, kStates.at(count));
            std::vector<py::array> checked;
            for (std::size_t s = 0; s <= count; ++s)
                checked.push_back(state_of(some[s], i, where + "[" + std::to_string(s) + "]"));
            places.push_back({all.emplace_back(checked[0]).data(), nullptr});
            if (count == 1) places.back().cell = all.emplace_back(checked[1]).data();
            if (count > 1) {  // one array, as the stream has them
                const py::list joined = py::cast(std::vector(checked.begin() + 1, checked.end()));
                const py::object made = py::module_::import("numpy").attr("concatenate")(joined, "axis"_a = 1);
                places.back().cell = all.emplace_back(py::array(made)).data();
            }
        }
        stream_->write_state(places);
    }

    void set_start() { stream_->set_start(); }

    void reset(const std::optional<std::vector<std::int64_t>>& rows) {
        if (rows) {
            stream_->reset(*rows);
        } else {
            stream_->reset();
        }
    }

    [[nodiscard]] const Stream& stream() const { return *stream_; }
    [[nodiscard]] const py::dtype& dtype() const { return dtype_; }

private:
    [[nodiscard]] bool has_cell(std::size_t layer) const { return stream_->spec(layer).has(Argument::init_cell); }

    // What a layer's state has, by its number of cell states.
    static constexpr std::array kStates{"(hidden,)", "(hidden, cell)", "", "(hidden, cell, normalizer, stabilizer)"};

    [[nodiscard]] std::size_t cells(std::size_t layer) const { return stream_->spec(layer).cell().cell_states; }

    // Returns h and each cell state, from h and one array of all cell states side by side.
    static py::tuple split(const py::tuple& state, std::size_t count) {
        py::tuple made(1 + count);
        made[0] = state[0];
        const py::list parts = py::module_::import("numpy").attr("split")(state[1], count, "axis"_a = 1);
        for (std::size_t s = 0; s < count; ++s) made[1 + s] = parts[s].attr("copy")();
        return made;
    }

    [[nodiscard]] std::vector<py::ssize_t> state_shape(std::size_t layer, Argument state) const {
        const TensorShape shape = shape_of(stream_->spec(layer), state);
        return {shape.begin(), shape.end()};
    }

    static void* data_of(const py::array& array) {
        return const_cast<void*>(array.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    }

    [[nodiscard]] bool has_dtype(const py::array& array, const py::dtype& dtype) const {
        return array.dtype().is(dtype) || dtype_name(array.dtype()) == dtype_name(dtype);
    }

    py::array input_of(const py::object& x) const {
        py::object object = x;
        if (!py::isinstance<py::array>(object) || Py_TYPE(object.ptr()) != py::detail::npy_api::get().PyArray_Type_)
            object = provided("as_numpy")(object, kPrefix + "x:");
        if (!py::isinstance<py::array>(object))
            throw TypeError(kPrefix + "x: expected a numpy.ndarray, got " + type_name(object));
        auto array = py::reinterpret_borrow<py::array>(object);
        if (!has_dtype(array, dtype_))
            throw TypeError(kPrefix + "x: expected dtype " + dtype_name(dtype_) + ", got " + dtype_name(array.dtype()));
        const py::ssize_t axes = array.ndim();
        if ((axes != 2 && axes != 3) || array.shape(axes - 2) != stream_->batch() ||
            array.shape(axes - 1) != stream_->inputs() || array.size() == 0) {
            const std::string shape = std::to_string(stream_->batch()) + ", " + std::to_string(stream_->inputs()) + "]";
            throw ValueError(kPrefix + "x: expected shape [N, I] = [" + shape + " or [T, N, I] = [T, " + shape +
                             ", got " + text_of(array));
        }
        return plain(array);
    }

    // Returns the factors of a reset [N], or [T, N] for a block; none without a reset.
    std::vector<double> factors_of(const py::object& reset, const py::array& input) const {
        if (reset.is_none()) return {};
        const py::object object = provided("as_numpy")(reset, kPrefix + "reset:");
        if (!py::isinstance<py::array>(object))
            throw TypeError(kPrefix + "reset: expected a numpy.ndarray, got " + type_name(object));
        const auto array = py::reinterpret_borrow<py::array>(object);
        const bool starts = array.dtype().kind() == 'b';
        if (!starts && !has_dtype(array, dtype_))
            throw TypeError(kPrefix + "reset: expected dtype bool or " + dtype_name(dtype_) + ", got " +
                            dtype_name(array.dtype()));
        const std::vector<py::ssize_t> shape(input.shape(), input.shape() + input.ndim() - 1);
        if (!std::ranges::equal(shape, std::span(array.shape(), static_cast<std::size_t>(array.ndim()))))
            throw ValueError(kPrefix + "reset: expected shape " + (input.ndim() == 3 ? "[T, N] = " : "[N] = ") +
                             std::string(py::str(py::list(py::cast(shape)))) + ", got " + text_of(array));
        const py::array_t<double, int{py::array::c_style} | int{py::array::forcecast}> numbers(array);
        std::vector<double> factors(numbers.data(), numbers.data() + numbers.size());
        if (starts)
            for (double& factor : factors) factor = 1 - factor;
        return factors;
    }

    py::array new_output(std::int64_t steps, bool block) const {
        if (block) return {dtype_, {steps, stream_->batch(), stream_->outputs()}};
        return {dtype_, {stream_->batch(), stream_->outputs()}};
    }

    py::array output_of(const py::object& out, const py::array& input) const {
        if (!py::isinstance<py::array>(out))
            throw TypeError(kPrefix + "out: expected a numpy.ndarray, got " + type_name(out));
        const auto array = py::reinterpret_borrow<py::array>(out);
        if (!has_dtype(array, dtype_))
            throw TypeError(kPrefix + "out: expected dtype " + dtype_name(dtype_) + ", got " +
                            dtype_name(array.dtype()));
        std::vector<py::ssize_t> shape(input.shape(), input.shape() + input.ndim());
        shape.back() = stream_->outputs();
        if (!std::ranges::equal(shape, std::span(array.shape(), static_cast<std::size_t>(array.ndim()))))
            throw ValueError(kPrefix + "out: expected shape " + std::string(py::str(py::list(py::cast(shape)))) +
                             ", got " + text_of(array));
        const char order = array.dtype().byteorder();
        constexpr int flags = int{py::array::c_style} | int{py::detail::npy_api::NPY_ARRAY_ALIGNED_} |
                              int{py::detail::npy_api::NPY_ARRAY_WRITEABLE_};
        if ((array.flags() & flags) != flags || (order != '=' && order != '|'))
            throw ValueError(kPrefix + "out: expected a C-contiguous, aligned array that can be written to");
        const auto* const a = static_cast<const std::byte*>(array.data());
        const auto* const b = static_cast<const std::byte*>(input.data());
        if (std::less<>()(a, b + input.nbytes()) && std::less<>()(b, a + array.nbytes()))
            throw ValueError(kPrefix + "out: expected memory of its own, got memory shared with x");
        return array;
    }

    static std::vector<py::object> items_of(const py::object& value, const std::string& where, std::size_t count,
                                            const std::string& what) {
        if (!py::isinstance<py::tuple>(value) && !py::isinstance<py::list>(value))
            throw TypeError(kPrefix + where + ": expected a tuple " + what + ", got " + type_name(value));
        std::vector<py::object> items;
        for (const py::handle item : value) items.push_back(py::reinterpret_borrow<py::object>(item));
        if (items.size() != count)
            throw ValueError(kPrefix + where + ": expected " + std::to_string(count) + " items, " + what + ", got " +
                             std::to_string(items.size()));
        return items;
    }

    py::array state_of(const py::object& value, std::size_t layer, const std::string& where) const {
        const py::object object = provided("as_numpy")(value, kPrefix + where + ":");
        if (!py::isinstance<py::array>(object))
            throw TypeError(kPrefix + where + ": expected a numpy.ndarray, got " + type_name(object));
        const auto array = py::reinterpret_borrow<py::array>(object);
        if (!has_dtype(array, state_dtype_))
            throw TypeError(kPrefix + where + ": expected dtype " + dtype_name(state_dtype_) + ", got " +
                            dtype_name(array.dtype()));
        const std::vector<py::ssize_t> shape = state_shape(layer, Argument::init_state);
        if (!std::ranges::equal(shape, std::span(array.shape(), static_cast<std::size_t>(array.ndim()))))
            throw ValueError(kPrefix + where + ": expected shape [N, H] = " +
                             std::string(py::str(py::list(py::cast(shape)))) + ", got " + text_of(array));
        return plain(array);
    }

    std::unique_ptr<Stream> stream_;
    py::dtype dtype_, state_dtype_;
    double step_flops_ = 0;
};

}  // namespace

void register_streams(py::module_& module) {
    py::class_<PythonStream>(module, "Stream")
        .def(py::init<const std::shared_ptr<Device>&, const std::vector<PythonLayer>&, std::int64_t, unsigned>(),
             py::arg("device"), py::arg("layers"), py::arg("batch"), py::arg("threads"))
        .def("step", &PythonStream::step, py::arg("x"), py::arg("out") = py::none(), py::arg("reset") = py::none(),
             py::call_guard<Inside>())
        .def("read_state", &PythonStream::state, py::call_guard<Inside>())
        .def("write_state", &PythonStream::set_state, py::arg("state"), py::call_guard<Inside>())
        .def("set_start", &PythonStream::set_start, py::call_guard<Inside>())
        .def("clear", &PythonStream::reset, py::arg("rows") = py::none(), py::call_guard<Inside>())
        .def_property_readonly("dtype", &PythonStream::dtype)
        .def_property_readonly("batch", [](const PythonStream& self) { return self.stream().batch(); })
        .def_property_readonly("inputs", [](const PythonStream& self) { return self.stream().inputs(); })
        .def_property_readonly("outputs", [](const PythonStream& self) { return self.stream().outputs(); });
}

}  // namespace vkrnn::python
