// Calls: checks the arguments, runs the call and returns the results.
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "bindings.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"

namespace vkrnn::python {
namespace {

bool is_in_host_order(const py::dtype& dtype) { return dtype.byteorder() == '=' || dtype.byteorder() == '|'; }

// Returns the array's type in host byte order.
py::dtype host_order_dtype(const py::array& array) {
    py::dtype dtype = array.dtype();
    return is_in_host_order(dtype) ? dtype : dtype.attr("newbyteorder")("=");
}

bool is_plain(const py::array& array) {
    constexpr int flags = int{py::array::c_style} | int{py::detail::npy_api::NPY_ARRAY_ALIGNED_};
    return (array.flags() & flags) == flags && is_in_host_order(array.dtype());
}

}  // namespace

// Avoids numpy.require for plain arrays, because it takes a microsecond to find that nothing is to be done.
py::array plain(const py::array& array) {
    if (is_plain(array)) return array;
    return py::module_::import("numpy").attr("require")(array, host_order_dtype(array), "CA");
}

Argument argument_named(std::string_view name, const std::string& prefix) {
    for (std::size_t i = 0; i < kArguments; ++i) {
        if (name_of(static_cast<Argument>(i)) == name) return static_cast<Argument>(i);
    }
    throw TypeError(prefix + " " + std::string(name) + ": unknown argument");
}

void require_bytes(const PlanBuffer& buffer, std::uint64_t bytes) {
    if (buffer.bytes != bytes) {
        throw std::logic_error("buffer '" + buffer.name + "' of the plan and its array differ in size");
    }
}

namespace {

std::vector<std::int64_t> shape_of(const py::array& array) { return {array.shape(), array.shape() + array.ndim()}; }

const py::object& array_of(const CheckedCall& checked, Argument argument) {
    const auto found = std::ranges::find(checked.arrays, argument, &std::pair<Argument, py::object>::first);
    if (found == checked.arrays.end()) throw std::logic_error("the plan reads an argument that the call does not have");
    return found->second;
}

// Returns the location of an array on the call's device. Memory of another device has no address there.
template <typename Location>
Location location_on(const Device& device, const PlanBuffer& buffer, const Array& array) {
    if (array.device.get() != &device) throw std::logic_error("'" + buffer.name + "' is on another device");
    require_bytes(buffer, array.nbytes());
    return {nullptr, array.storage, array.offset};
}

}  // namespace

InputLocation input_location(const Device& device, const PlanBuffer& buffer, const py::object& object,
                             std::vector<py::array>& kept) {
    if (py::isinstance<Array>(object)) return location_on<InputLocation>(device, buffer, object.cast<const Array&>());
    kept.push_back(plain(object));
    require_bytes(buffer, static_cast<std::uint64_t>(kept.back().nbytes()));
    return {kept.back().data()};
}

ResultLocation result_location(const Device& device, const PlanBuffer& buffer, const py::object& object) {
    if (py::isinstance<Array>(object)) return location_on<ResultLocation>(device, buffer, object.cast<const Array&>());
    auto array = object.cast<py::array>();
    require_bytes(buffer, static_cast<std::uint64_t>(array.nbytes()));
    return {array.mutable_data()};
}

namespace {

// Returns the dtype of a call's results, which is that of its source.
py::dtype result_dtype(const CheckedCall& checked) {
    const py::object& source = array_of(checked, Argument::source);
    return py::isinstance<Array>(source) ? source.cast<const Array&>().dtype : host_order_dtype(source);
}

std::shared_ptr<const Plan> plan_of(Device& device, const CheckedCall& checked, bool tf32) {
    const Unlocked unlocked;
    return device.plan_call(checked.call.spec, tf32);
}

// Runs the call and returns its results. `out` has an element for each result: an array, or None to allocate one.
// `owner` is the vkrnn.Device of new arrays. `resident`: new results are Arrays, and the function may return before
// they are computed; otherwise they are NumPy arrays. `tf32`: float32 products may be rounded to TF32.
py::list run(const std::shared_ptr<Device>& device, const CheckedCall& checked, const py::list& out,
             const py::object& owner, bool resident, bool tf32) {
    const Call& call = checked.call;
    const std::string prefix = message_prefix(call.spec.cell(), call.spec.gradients, checked.label);
    const std::shared_ptr<const Plan> plan = plan_of(*device, checked, tf32);

    // Refuses a call that can never fit as run_plan() does, but before arrays are copied for it or allocated for its
    // results. The CPU reads and writes NumPy's arrays in place.
    const bool on_host = device->profile().backend == Backend::native;
    const auto exists = [&](const py::handle& array) {
        return py::isinstance<Array>(array) || (on_host && is_plain(py::reinterpret_borrow<py::array>(array)));
    };
    std::vector<std::size_t> existing;
    for (const auto& [argument, index] : plan->inputs) {
        if (exists(array_of(checked, argument))) existing.push_back(index);
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (!out[i].is_none() && exists(out[i])) existing.push_back(plan->results.at(i));
    }
    device->require_room(*plan, plan->peak_bytes(existing), prefix);

    std::vector<py::array> kept;
    std::vector<InputLocation> inputs;
    for (const auto& [argument, index] : plan->inputs) {
        inputs.push_back(input_location(*device, plan->buffers.at(index), array_of(checked, argument), kept));
    }
    py::list arrays;
    std::vector<ResultLocation> results;
    const py::dtype dtype = result_dtype(checked);
    for (std::size_t i = 0; i < call.results.size(); ++i) {
        py::object array = out[i];
        if (array.is_none()) {
            const auto& shape = call.results[i].shape;
            Array made{owner, device, nullptr, 0, dtype, {shape.begin(), shape.end()}};
            array = resident ? py::cast(allocate(std::move(made), false)) : allocate_for_host(std::move(made));
        }
        results.push_back(result_location(*device, plan->buffers.at(plan->results.at(i)), array));
        arrays.append(std::move(array));
    }
    {
        const EnvironmentCopy environment(kCallVariables);  // copied while the GIL keeps other threads from changing it
        const Unlocked unlocked;
        device->run(plan, inputs, results, !resident, prefix, &interrupted);
    }
    if (!resident) {
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            if (py::isinstance<Array>(arrays[i])) arrays[i] = view(arrays[i].cast<const Array&>());
        }
    }
    return arrays;
}

// Reads each integer once. A uint64 above the range of int64 is clipped, and refused later like any number that is too
// large.
template <typename Wide>
std::vector<std::int64_t> read_integers(const py::array& array) {
    constexpr std::uint64_t largest = std::numeric_limits<std::int64_t>::max();
    const py::array_t<Wide, int{py::array::c_style} | int{py::array::forcecast}> wide(array);
    std::vector<std::int64_t> integers;
    for (py::ssize_t i = 0; i < wide.size(); ++i) {
        const Wide value = wide.data()[i];
        const bool too_large = std::is_unsigned_v<Wide> && static_cast<std::uint64_t>(value) > largest;
        integers.push_back(static_cast<std::int64_t>(too_large ? Wide(largest) : value));
    }
    return integers;
}

}  // namespace

py::array as_int32(const std::vector<std::int64_t>& integers) {
    py::array_t<std::int32_t> array(static_cast<py::ssize_t>(integers.size()));
    std::ranges::transform(integers, array.mutable_data(), [](std::int64_t value) { return static_cast<int>(value); });
    return array;
}

// NumPy builds the name anew each time, in Python, which is slow for every argument of every call. For a void type it
// takes the name of a Python class, which may be "int" or "float".
std::string dtype_name(const py::dtype& dtype) {
    constexpr int kFirstOfOthers = 256;  // NumPy's NPY_USERDEF: types such as bfloat16
    if (dtype.num() < kFirstOfOthers) {
        const auto named = [&](const char* kind) { return kind + std::to_string(8 * dtype.itemsize()); };
        switch (dtype.kind()) {
            case 'f': return dtype.itemsize() == 4 ? "float32" : named("float");
            case 'i': return named("int");
            case 'u': return named("uint");
            case 'V': return named("void");
            default: break;
        }
    }
    return py::str(dtype.attr("name")).cast<std::string>();
}

const Cell& require_cell(const std::string& name) {
    const Cell* found = find_cell(name);
    if (found == nullptr) throw ValueError("expected the name of a cell, got '" + name + "'");
    return *found;
}

TensorInfo info_of(const py::array& array, Argument argument) {
    TensorInfo info{dtype_name(array.dtype()), shape_of(array), {}};
    const char kind = array.dtype().kind();
    if (argument == Argument::lengths && array.ndim() == 1 && (kind == 'i' || kind == 'u'))
        info.integers = kind == 'u' ? read_integers<std::uint64_t>(array) : read_integers<std::int64_t>(array);
    return info;
}

CheckedCall check(const Cell& cell, bool gradients, py::handle descriptor, const py::dict& arguments,
                  std::string_view label, bool packed) {
    const std::string prefix = message_prefix(cell, gradients, label);
    CheckedCall checked{.call = {}, .arrays = {}, .label = std::string(label), .owner = py::none()};
    Arguments infos;
    for (const auto& [key, value] : arguments) {
        const auto name = key.cast<std::string>();
        const Argument argument = argument_named(name, prefix);
        if (py::isinstance<Array>(value)) {
            const auto& array = value.cast<const Array&>();
            if (checked.owner.is_none()) {
                checked.owner = array.owner;
            } else if (!checked.owner.is(array.owner)) {
                throw ValueError(prefix + " " + name + ": expected an array on " +
                                 py::repr(checked.owner).cast<std::string>() + ", where others are, got one on " +
                                 provided("distinct_repr")(array.owner, checked.owner).cast<std::string>());
            }
            infos[argument] = {dtype_name(array.dtype), {array.shape.begin(), array.shape.end()}, {}};
            checked.arrays.emplace_back(argument, py::reinterpret_borrow<py::object>(value));
            continue;
        }
        if (!py::isinstance<py::array>(value)) {
            const std::string array = argument == Argument::lengths ? "" : " or a vkrnn.Array";
            throw TypeError(prefix + " " + name + ": expected a numpy.ndarray" + array + ", got " + type_name(value));
        }
        const auto array = py::reinterpret_borrow<py::array>(value);
        TensorInfo info = info_of(array, argument);
        if (info.integers.empty())
            checked.arrays.emplace_back(argument, array);
        else
            checked.arrays.emplace_back(argument, as_int32(info.integers));  // the device reads what was checked
        infos[argument] = std::move(info);
    }
    checked.call = check_call(read_descriptor(cell, descriptor, prefix), gradients, infos, label, {.packed = packed});
    return checked;
}

void register_calls(py::module_& module) {
    py::class_<CheckedCall>(module, "CheckedCall", "A call whose arguments have been checked.",
                            collected<CheckedCall>())
        .def_readonly("device", &CheckedCall::owner)
        .def_property_readonly("arrays",
                               [](const CheckedCall& checked) {
                                   py::dict dict;
                                   for (const auto& [argument, array] : checked.arrays)
                                       dict[to_python(name_of(argument))] = array;
                                   return dict;
                               })
        .def_property_readonly("result_names",
                               [](const CheckedCall& checked) {
                                   const auto& results = checked.call.results;
                                   py::tuple names(results.size());
                                   for (std::size_t i = 0; i < results.size(); ++i) names[i] = results[i].name;
                                   return names;
                               })
        .def_property_readonly("result_shapes", [](const CheckedCall& checked) {
            const auto& results = checked.call.results;
            py::tuple shapes(results.size());
            for (std::size_t i = 0; i < results.size(); ++i) shapes[i] = py::tuple(py::cast(results[i].shape));
            return shapes;
        });

    module.def(
        "check",
        [](const std::string& cell_name, bool gradients, py::handle descriptor, const py::dict& arguments,
           const std::string& label,
           bool packed) { return check(require_cell(cell_name), gradients, descriptor, arguments, label, packed); },
        py::arg("cell_name"), py::arg("gradients"), py::arg("descriptor"), py::arg("arguments"), py::arg("label") = "",
        py::arg("packed") = false, py::call_guard<Inside>());
    module.def("run", &run, py::arg("device"), py::arg("call"), py::arg("out"), py::arg("owner"), py::arg("resident"),
               py::arg("tf32") = false, py::call_guard<Inside>());
    module.def(
        "plan",
        [](const std::shared_ptr<Device>& device, const CheckedCall& checked, bool tf32) {
            return SharedPlan{plan_of(*device, checked, tf32), checked.label};
        },
        py::arg("device"), py::arg("call"), py::arg("tf32") = false);
}

}  // namespace vkrnn::python
