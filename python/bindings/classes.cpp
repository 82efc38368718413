// What all classes of the module have in common.
#include <string>

#include "bindings.h"

namespace vkrnn::python {
namespace {

// pybind11 would give an instance whose __init__ was skipped, as in cls.__new__(cls), memory that nobody has filled.
void* refuse_empty(std::size_t /*bytes*/) {
    throw py::type_error("expected an object that was made by vkrnn, got one whose __init__ was skipped");
}

// Protocols 0 and 1 of pickle would make an instance of pybind11's base class, which ends the process. The words are
// those of Python for the later protocols.
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
