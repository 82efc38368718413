// Shared by the parts of the extension module. Each register_x adds one area to the module.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vkrnn/device.h"
#include "vkrnn/plan.h"
#include "vkrnn/spec.h"
#include "vkrnn/stream.h"

namespace vkrnn::python {

namespace py = pybind11;

// A plan as Python holds it: shared with the device's cache.
struct SharedPlan {
    std::shared_ptr<const Plan> plan;
    std::string label;  // the caller's name for the call; shown, not compared
};

// An array in a device's memory, C-contiguous: a part of a storage.
struct Array {
    py::object owner;  // the vkrnn.Device
    std::shared_ptr<Device> device;
    std::shared_ptr<Storage> storage;
    std::uint64_t offset = 0;  // bytes
    py::dtype dtype;
    std::vector<py::ssize_t> shape;

    [[nodiscard]] std::uint64_t nbytes() const;
    void for_each_object(const auto& visit) { visit(owner); }
};

// `array` without storage, completed by memory that results are computed in. Throws MemoryError, DeviceError.
Array allocate(Array array, bool host_writes);

// Completes an array that the host will read: an Array in memory that the device writes, or a numpy.ndarray where such
// memory is scarce.
py::object allocate_for_host(Array array);

// Waits for what writes the array, and shows NumPy its memory. Throws BufferError where the host does not see it.
py::array view(const Array& array);

// A call whose arguments have been checked, with the arrays it was made from: numpy.ndarray or Array.
struct CheckedCall {
    Call call;
    std::vector<std::pair<Argument, py::object>> arrays;
    std::string label;
    py::object owner = py::none();  // the device of those that are on one

    void for_each_object(const auto& visit) {
        visit(owner);
        for (auto& [argument, array] : arrays) visit(array);
    }
};

// Returns the C++ object of an instance of such a class; null if its constructor has not run.
template <class T>
T* object_of(PyObject* self) {
    auto* const instance = reinterpret_cast<py::detail::instance*>(self);
    const bool made = instance->simple_layout || instance->nonsimple.values_and_holders != nullptr;
    return made ? static_cast<T*>(instance->get_value_and_holder().value_ptr()) : nullptr;
}

// Returns what py::init of a function that returns a T would be, but that can run out of memory: pybind11 registers a
// new object where nothing catches std::bad_alloc. To be defined as "__init__" with Constructor{}.
using Constructor = py::detail::is_new_style_constructor;
template <class... Args, class Make>
auto constructor(Make make) {
    return [make](py::detail::value_and_holder& self, Args... args) {
        auto made = std::make_unique<decltype(make(std::forward<Args>(args)...))>(make(std::forward<Args>(args)...));
        self.value_ptr() = made.get();
        try {
            self.type->init_instance(self.inst, nullptr);
        } catch (...) {
            self.value_ptr() = nullptr;
            throw;
        }
        static_cast<void>(made.release());
    };
}

// Makes a class one whose instances the garbage collector looks into: it finds reference cycles through the Python
// objects that T::for_each_object visits. It breaks them by putting None in their place.
template <class T>
py::custom_type_setup collected() {
    return py::custom_type_setup([](PyHeapTypeObject* made) {
        made->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
        made->ht_type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
            Py_VISIT(Py_TYPE(self));
            int stop = 0;
            if (T* const object = object_of<T>(self))
                object->for_each_object([&](const py::object& held) {
                    if (stop == 0 && held) stop = visit(held.ptr(), arg);
                });
            return stop;
        };
        made->ht_type.tp_clear = [](PyObject* self) {
            if (T* const object = object_of<T>(self))
                object->for_each_object([](py::object& held) { held = py::none(); });
            return 0;
        };
    });
}

// Returns the object that the package has given the extension by that name, with Python's provide(). Throws if there is
// none. The extension imports nothing of the package.
py::handle provided(const std::string& name);

// The Descriptor that a Python descriptor object stands for; None is the defaults. `prefix` begins the messages.
// Throws TypeError for the descriptor of another cell and for anything else.
Descriptor read_descriptor(const Cell& cell, py::handle object, const std::string& prefix);

// Throws TypeError or ValueError about the arguments: a dict from names to arrays. `packed` is that of check_call.
CheckedCall check(const Cell& cell, bool gradients, py::handle descriptor, const py::dict& arguments,
                  std::string_view label, bool packed = false);

// Returns the spec of the call on a device; `tf32`: its float32 products may be rounded where the device can do that.
Spec spec_on(const CheckedCall& checked, const Profile& profile, bool tf32);

// A layer as Python hands it over: the cell's name, a dict of arrays, the descriptor.
using PythonLayer = std::tuple<std::string, py::dict, py::object>;

// Reads layers whose weights are in `kept`, which has to outlive them. Throws TypeError and ValueError.
std::vector<StreamLayer> read_layers(const std::vector<PythonLayer>& layers, std::vector<py::array>& kept,
                                     const std::string& prefix);

// Returns whether a call is to stop, for calls to poll: the interpreter has seen a signal, or is about to end. Only the
// main thread sees signals, and takes the GIL.
bool interrupted();

// Marks a thread as inside the core while the object lives; it has the GIL when it makes one. The process does not end
// under such a thread: what drivers and C++'s libraries destroy as it ends must not be in use, and the interpreter (up
// to 3.13) unwinds a daemon thread that wants the GIL back, through frames that hold Python's objects. So before the
// interpreter ends, Python's stop_threads() names the daemon threads, and waits until every thread has left the core,
// or stays in it, asleep, for good: those named do at the next Inside or Unlocked, where they come by soon, since
// interrupted() stops their calls. Threads of other libraries go on, because these may wait for them.
class Inside {
public:
    Inside();
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
};

// Leaves the GIL to others.
class Unlocked {
public:
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    const Inside inside_;
    PyThreadState* const state_;
};

// Returns the array C-contiguous, aligned and in the machine's byte order: itself or a copy.
py::array plain(const py::array& array);

std::string dtype_name(const py::dtype& dtype);
std::string type_name(py::handle object);  // "list"; "None" for None
py::str to_python(std::string_view text);  // from UTF-8; other bytes are escaped

void register_errors(py::module_& module);
void register_threads(py::module_& module);
void register_provided(py::module_& module);
void register_cells(py::module_& module);
void register_plans(py::module_& module);
void register_devices(py::module_& module);
void register_tuned_calls(py::module_& module);  // takes calls, which are registered before it
void register_arrays(py::module_& module);
void register_calls(py::module_& module);
void register_layers(py::module_& module);
void register_streams(py::module_& module);

// Makes misuse of the module's classes a TypeError that pybind11 lets end the process; to be called after all others.
void secure_classes(const py::module_& module);

}  // namespace vkrnn::python
