// The core's exceptions as Python's: the one place where they are translated.
#include "vkrnn/error.h"

#include <exception>
#include <new>

#include "bindings.h"

namespace vkrnn::python {
namespace {

PyObject* device_error = nullptr;  // lives as long as the module

void translate(std::exception_ptr thrown) {
    try {
        if (thrown) std::rethrow_exception(thrown);
    } catch (const TypeError& error) {
        PyErr_SetString(PyExc_TypeError, error.what());
    } catch (const ValueError& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const NotImplementedError& error) {
        PyErr_SetString(PyExc_NotImplementedError, error.what());
    } catch (const MemoryError& error) {
        PyErr_SetString(PyExc_MemoryError, error.what());
    } catch (const DeviceError& error) {
        PyErr_SetString(device_error, error.what());
    } catch (const Interrupted&) {
        // The poll that asked to stop left its exception pending, as a rule a KeyboardInterrupt.
        if (PyErr_Occurred() == nullptr) PyErr_SetNone(PyExc_KeyboardInterrupt);
    } catch (const std::bad_alloc&) {
        PyErr_SetString(PyExc_MemoryError, "vkrnn: out of host memory");
    }
}

}  // namespace

void register_errors(py::module_& module) {
    device_error =
        PyErr_NewExceptionWithDoc("vkrnn.DeviceError",
                                  "No Vulkan loader, driver or device, or a device that was closed or lost.\n\n"
                                  "A lost device stays unusable; a new `Device` works.",
                                  PyExc_RuntimeError, nullptr);
    if (device_error == nullptr) throw py::error_already_set();
    module.attr("DeviceError") = py::handle(device_error);
    py::register_local_exception_translator(&translate);
}

}  // namespace vkrnn::python
