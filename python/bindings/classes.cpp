// Safeguards for all classes of the module.
#include <string>

#include "bindings.h"

namespace vkrnn::python {
namespace {

// Refuses an instance whose __init__ was skipped, as in cls.__new__(cls). pybind11 would give it uninitialized memory.
void* refuse_empty(std::size_t /*bytes*/) {
    throw py::type_error("expected an object that was made by vkrnn, got one whose __init__ was skipped");
}

// Refuses to pickle. Protocols 0 and 1 would create an instance of pybind11's base class, which ends the process. The
// message is Python's own for the later protocols.
void refuse_pickle(py::handle self) {
    throw py::type_error("cannot pickle '" + std::string(Py_TYPE(self.ptr())->tp_name) + "' object");
}

}  // namespace

void secure_classes(const py::module_& module) {
    for (const auto& [name, value] : py::dict(module.attr("__dict__"))) {
        if (PyType_Check(value.ptr()) == 0) continue;
        py::detail::type_info* const info = py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(value.ptr()));
        if (info == nullptr) continue;
        info->operator_new = &refuse_empty;
        value.attr("__reduce__") = py::cpp_function(&refuse_pickle, py::name("__reduce__"), py::is_method(value));
    }
}

}  // namespace vkrnn::python
