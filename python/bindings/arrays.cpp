// Arrays in a device's memory. vkrnn.Array is a subclass in Python, with everything that needs no memory address.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "bindings.h"
#include "vkrnn/error.h"

namespace vkrnn::python {
namespace {

std::vector<py::ssize_t> strides_of(const Array& array) {
    std::vector<py::ssize_t> strides(array.shape.size());
    py::ssize_t stride = array.dtype.itemsize();
    for (std::size_t axis = strides.size(); axis-- > 0;) {
        strides[axis] = stride;
        stride *= array.shape[axis];
    }
    return strides;
}

void wait(const Array& array) {
    const Unlocked unlocked;
    array.device->wait(*array.storage, &interrupted);
}

// Waits for the commands that write the array and returns its host address.
std::byte* host_memory(const Array& array) {
    wait(array);
    std::byte* const host = array.storage->host();
    if (host == nullptr) {
        throw py::buffer_error("[Array] the host cannot map the memory of " + array.device->profile().name +
                               "; copy it with numpy()");
    }
    return host + array.offset;
}

// The byte range of an array: host addresses, or offsets into a storage that the host cannot access.
struct Extent {
    const Storage* storage = nullptr;
    std::uintptr_t begin = 0, end = 0;

    [[nodiscard]] bool overlaps(const Extent& other) const {
        return storage == other.storage && std::max(begin, other.begin) < std::min(end, other.end);
    }
};

Extent extent_of(const Array& array) {
    const std::byte* const host = array.storage->host();
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(host) + array.offset;
    return {host == nullptr ? array.storage.get() : nullptr, begin, begin + array.nbytes()};
}

// Strides may be negative, so an array may begin before its first element.
Extent extent_of(const py::array& array) {
    const auto first = reinterpret_cast<std::uintptr_t>(array.data());
    Extent extent{nullptr, first, first + static_cast<std::uintptr_t>(array.itemsize())};
    for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
        if (array.shape(axis) == 0) return {};
        const py::ssize_t reach = array.strides(axis) * (array.shape(axis) - 1);
        (reach < 0 ? extent.begin : extent.end) += static_cast<std::uintptr_t>(reach);
    }
    return extent;
}

// Returns nothing if the object is not an array.
Extent extent_of(py::handle object) {
    if (py::isinstance<Array>(object)) return extent_of(py::cast<const Array&>(object));
    return py::isinstance<py::array>(object) ? extent_of(py::reinterpret_borrow<py::array>(object)) : Extent{};
}

std::optional<std::size_t> first_overlap(py::handle array, const py::list& others) {
    const Extent extent = extent_of(array);
    for (std::size_t i = 0; i < others.size(); ++i)
        if (extent.overlaps(extent_of(py::handle(others[i])))) return i;
    return std::nullopt;
}

// `from` has the array's type and shape.
void write(const Array& array, py::array from) {
    if (static_cast<std::uint64_t>(from.nbytes()) != array.nbytes() || (from.flags() & py::array::c_style) == 0) {
        throw ValueError("[Array] source: expected a C-contiguous array of " + std::to_string(array.nbytes()) +
                         " bytes, got " + std::to_string(from.nbytes()));
    }
    if (extent_of(array).overlaps(extent_of(from))) from = from.attr("copy")();  // it is a view of a part of this array
    const void* const source = from.data();
    const Unlocked unlocked;
    array.device->upload({nullptr, array.storage, array.offset}, source, array.nbytes(), &interrupted);
}

}  // namespace

std::uint64_t Array::nbytes() const {
    if (std::ranges::find(shape, 0) != shape.end()) return 0;
    auto bytes = static_cast<std::uint64_t>(dtype.itemsize());
    for (const py::ssize_t axis : shape) {
        const auto length = static_cast<std::uint64_t>(axis);
        if (bytes > std::numeric_limits<std::uint64_t>::max() / length) {
            return std::numeric_limits<std::uint64_t>::max();  // more than any memory
        }
        bytes *= length;
    }
    return bytes;
}

// The view's base keeps the storage alive as long as NumPy uses its memory.
py::array view(const Array& array) {
    std::byte* const data = host_memory(array);
    const py::capsule base(new HostView(array.storage), [](void* held) { delete static_cast<HostView*>(held); });
    return {array.dtype, array.shape, strides_of(array), data, base};
}

py::object allocate_for_host(Array array) {
    array.storage = array.device->allocate_for_host(array.nbytes());
    if (array.storage) return py::cast(std::move(array));
    return py::array(array.dtype, array.shape);
}

Array allocate(Array array, bool host_writes) {
    const std::uint64_t bytes = array.nbytes();
    const Unlocked unlocked;
    array.storage = array.device->allocate(bytes, host_writes);
    return array;
}

namespace {

void require_axes(const std::vector<py::ssize_t>& shape) {
    for (const py::ssize_t axis : shape)
        if (axis < 0) throw ValueError("[Array] shape: expected axes of at least 0, got " + std::to_string(axis));
}

// Returns the type in host byte order.
py::dtype element_type(const py::dtype& dtype) {
    const std::string name = dtype_name(dtype);
    if (std::ranges::find(kDtypes, name, [](Dtype known) { return name_of(known); }) == kDtypes.end()) {
        throw TypeError("[Array] dtype: expected float32, float64, float16 or bfloat16, got " + name);
    }
    return dtype.attr("newbyteorder")("=");
}

// Returns a copy for the host of an array that it cannot access.
py::array fetch(const Array& array) {
    const py::object object = allocate_for_host({array.owner, array.device, nullptr, 0, array.dtype, array.shape});
    const InputLocation from{nullptr, array.storage, array.offset};
    if (py::isinstance<Array>(object)) {
        const auto& copy = object.cast<const Array&>();
        {
            const Unlocked unlocked;
            array.device->copy({nullptr, copy.storage, 0}, from, array.nbytes(), &interrupted);
        }
        return view(copy);
    }
    auto copy = object.cast<py::array>();
    void* const to = copy.mutable_data();
    const Unlocked unlocked;
    array.device->download(to, from, array.nbytes(), &interrupted);
    return copy;
}

}  // namespace

void register_arrays(py::module_& module) {
    py::class_<Array>(module, "Array", py::buffer_protocol(), collected<Array>())
        .def("__init__", constructor<const Array&>([](const Array& array) { return Array(array); }), Constructor{},
             py::arg("array"))
        .def("__init__",
             constructor<py::object, std::shared_ptr<Device>, const py::dtype&, std::vector<py::ssize_t>, bool>(
                 [](py::object owner, std::shared_ptr<Device> device, const py::dtype& dtype,
                    std::vector<py::ssize_t> shape, bool host_writes) {
                     if (!device) throw py::type_error("[Array] device: expected an open device, got None");
                     if (!py::isinstance(owner, provided("Device"))) {
                         throw TypeError("[Array] owner: expected a vkrnn.Device, got " + type_name(owner));
                     }
                     require_axes(shape);
                     return allocate(
                         {std::move(owner), std::move(device), nullptr, 0, element_type(dtype), std::move(shape)},
                         host_writes);
                 }),
             Constructor{}, py::arg("owner"), py::arg("device"), py::arg("dtype"), py::arg("shape"),
             py::arg("host_writes") = false)
        .def("__init__",
             constructor<const Array&, std::uint64_t, std::vector<py::ssize_t>>(
                 [](const Array& base, std::uint64_t offset, std::vector<py::ssize_t> shape) {
                     require_axes(shape);
                     Array part = base;
                     part.shape = std::move(shape);
                     if (offset > base.nbytes() || part.nbytes() > base.nbytes() - offset) {
                         throw ValueError("[Array] offset: expected a part of the array's " +
                                          std::to_string(base.nbytes()) + " bytes, got " +
                                          std::to_string(part.nbytes()) + " bytes at offset " + std::to_string(offset));
                     }
                     const auto bytes = static_cast<std::uint64_t>(base.dtype.itemsize());
                     if (offset % bytes != 0) {
                         throw ValueError("[Array] offset: expected a multiple of " + std::to_string(bytes) + ", got " +
                                          std::to_string(offset));
                     }
                     part.offset += offset;
                     return part;
                 }),
             Constructor{}, py::arg("base"), py::arg("offset"), py::arg("shape"))
        .def_property_readonly("device", [](const Array& array) { return array.owner; })
        .def_property_readonly("dtype", [](const Array& array) { return array.dtype; })
        .def_property_readonly("shape", [](const Array& array) { return py::tuple(py::cast(array.shape)); })
        .def_property_readonly("nbytes", &Array::nbytes)
        .def_property_readonly("host_visible", [](const Array& array) { return array.storage->host() != nullptr; })
        .def("wait", &wait)
        .def_buffer([](const Array& array) {
            if (dtype_name(array.dtype) == "bfloat16") {
                throw py::buffer_error("[Array] the buffer protocol does not support bfloat16; use numpy.asarray");
            }
            return py::buffer(view(array)).request(true);
        });
    module.def("view", &view, py::arg("array"), py::call_guard<Inside>());
    module.def("fetch", &fetch, py::arg("array"), py::call_guard<Inside>());
    module.def("write", &write, py::arg("array"), py::arg("source"), py::call_guard<Inside>());
    module.def(
        "clear",
        [](const Array& array) {
            const Unlocked unlocked;
            array.device->clear(array.storage, &interrupted);
        },
        py::arg("array"));
    module.def("first_overlap", &first_overlap, py::arg("array"), py::arg("others"));
}

}  // namespace vkrnn::python
