// Translates the core's exceptions into Python's. This is the only place that does so.
#include "vkrnn/error.h"

#include <exception>
#include <new>

#include "bindings.h"

namespace vkrnn::python {
namespace {

PyObject* device_error = nullptr;  // lives as long as the module

// Messages may quote the environment, which need not be UTF-8.
void set_error(PyObject* type, const char* message) { PyErr_SetObject(type, to_python(message).ptr()); }

void translate(std::exception_ptr thrown) {
    try {
        if (thrown) std::rethrow_exception(thrown);
    } catch (const TypeError& error) {
        set_error(PyExc_TypeError, error.what());
    } catch (const ValueError& error) {
        set_error(PyExc_ValueError, error.what());
    } catch (const NotImplementedError& error) {
        set_error(PyExc_NotImplementedError, error.what());
    } catch (const MemoryError& error) {
        set_error(PyExc_MemoryError, error.what());
    } catch (const DeviceError& error) {
        set_error(device_error, error.what());
    } catch (const Interrupted&) {
        // The poll that asked to stop usually left an exception pending, such as KeyboardInterrupt.
        if (PyErr_Occurred() == nullptr) PyErr_SetNone(PyExc_KeyboardInterrupt);
    } catch (const std::bad_alloc&) {
        PyErr_SetString(PyExc_MemoryError, "vkrnn: out of host memory");
    }
}

// Calls a function. Its exception loses its traceback, which XLA would write before the message.
py::object call_without_traceback(const py::function& function, const py::args& arguments) {
    try {
        return function(*arguments);
    } catch (const py::error_already_set& error) {
        PyException_SetTraceback(error.value().ptr(), Py_None);
        PyErr_SetObject(error.type().ptr(), error.value().ptr());
    }
    throw py::error_already_set();
}

}  // namespace

void register_errors(py::module_& module) {
    device_error =
        PyErr_NewExceptionWithDoc("vkrnn.DeviceError",
                                  "A device cannot be opened, was closed or lost, or failed in a call.\n\n"
                                  "A lost device stays unusable; a new `Device` works. After a failure on a CUDA "
                                  "device, a new process is needed.",
                                  PyExc_RuntimeError, nullptr);
    if (device_error == nullptr) throw py::error_already_set();
    module.attr("DeviceError") = py::handle(device_error);
    py::register_local_exception_translator(&translate);
    module.def("call_without_traceback", &call_without_traceback, py::arg("function"));
}

}  // namespace vkrnn::python
