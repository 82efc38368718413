// Declarations shared by the parts of the extension module. Each register_x adds one area to the module.
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

// Calls with more work than this take tens of microseconds, so they release the GIL.
constexpr double kLongFlops = 1e6;

// A plan as Python holds it, shared with the device's cache.
struct SharedPlan {
    std::shared_ptr<const Plan> plan;
    std::string label;  // the caller's name for the call; shown, not compared
};

// A C-contiguous array in a device's memory: a part of a storage.
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

// Allocates storage for an array that has none, and returns the array. Throws MemoryError or DeviceError.
Array allocate(Array array, bool host_writes);

// Allocates an array for the host to read: an Array in memory that the device writes, or a numpy.ndarray if such memory
// is scarce.
py::object allocate_for_host(Array array);

// Waits until pending writes of the array are done and returns a NumPy view of its memory. Throws BufferError if the
// host cannot access it.
py::array view(const Array& array);

// A call with checked arguments, and the arrays (numpy.ndarray or Array) that it was made from.
struct CheckedCall {
    Call call;
    std::vector<std::pair<Argument, py::object>> arrays;
    std::string label;
    py::object owner = py::none();  // the device of the Arrays, if there are any

    void for_each_object(const auto& visit) {
        visit(owner);
        for (auto& [argument, array] : arrays) visit(array);
    }
};

// Returns the C++ object of an instance of a bound class; null if its constructor has not run.
template <class T>
T* object_of(PyObject* self) {
    auto* const instance = reinterpret_cast<py::detail::instance*>(self);
    const bool made = instance->simple_layout || instance->nonsimple.values_and_holders != nullptr;
    return made ? static_cast<T*>(instance->get_value_and_holder().value_ptr()) : nullptr;
}

// Returns an alternative to py::init for a function that returns a T and may run out of memory: pybind11 registers a
// new object where nothing catches std::bad_alloc. Define it as "__init__" with Constructor{}.
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

// Lets the garbage collector look into a class. It finds reference cycles through the Python objects that
// T::for_each_object visits, and breaks them by replacing these with None.
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

// Returns the object that the Python package registered under this name with provide(). Throws if there is none. This
// way the extension imports nothing from the package.
py::handle provided(const std::string& name);

// Converts a Python descriptor; None means the defaults. `prefix` begins the messages. Throws TypeError for another
// cell's descriptor and for anything else.
Descriptor read_descriptor(const Cell& cell, py::handle object, const std::string& prefix);

// Checks a call's arguments, a dict from names to arrays. `packed` is that of check_call. Throws TypeError or
// ValueError.
CheckedCall check(const Cell& cell, bool gradients, py::handle descriptor, const py::dict& arguments,
                  std::string_view label, bool packed = false);

// Throws ValueError if there is no cell of the name.
const Cell& require_cell(const std::string& name);

// Returns what check_call() asks about an array, with the numbers of lengths.
TensorInfo info_of(const py::array& array, Argument argument);

// Returns lengths as devices read them.
py::array as_int32(const std::vector<std::int64_t>& integers);

// Returns the argument of this name. Throws TypeError, with a message that begins with `prefix`, if there is none.
Argument argument_named(std::string_view name, const std::string& prefix);

// Throws if a plan disagrees with the call about the size of an array, because it would read or write beyond it.
void require_bytes(const PlanBuffer& buffer, std::uint64_t bytes);

// Return where an operand or result of a call is: an Array of the device, or a numpy.ndarray. `kept` gets the array
// that is read, which may be a copy.
InputLocation input_location(const Device& device, const PlanBuffer& buffer, const py::object& object,
                             std::vector<py::array>& kept);
ResultLocation result_location(const Device& device, const PlanBuffer& buffer, const py::object& object);

// A layer as passed from Python: the cell's name, a dict of arrays, the descriptor.
using PythonLayer = std::tuple<std::string, py::dict, py::object>;

// Reads layers. Their weights are stored in `kept`, which must outlive them. Throws TypeError and ValueError.
std::vector<NetworkLayer> read_layers(const std::vector<PythonLayer>& layers, std::vector<py::array>& kept,
                                      const std::string& prefix);

// Poll of all calls. Returns whether a call should stop, because the interpreter has received a signal or is about to
// end. Only the main thread checks for signals, and takes the GIL for it.
bool interrupted();

// The part of interrupted() that does not need the GIL: returns whether the calling thread should stop because the
// interpreter is about to end.
bool ending_without_gil();

// Marks a thread as inside the core while the object lives. Create it with the GIL held.
//
// The process must not end while threads are inside, for two reasons. Objects that drivers and C++ libraries destroy at
// exit must not be in use. And up to Python 3.13, the interpreter unwinds a daemon thread that asks for the GIL during
// its end, through frames that hold Python objects. So before the interpreter ends, Python's stop_threads() names the
// daemon threads. It then waits until every thread has either left the core or sleeps in it for ever. The named threads
// fall asleep at their next Inside or Unlocked. They get there soon, because interrupted() stops their calls. Threads
// of other libraries continue, because the daemon threads may wait for them.
class Inside {
public:
    Inside();
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
};

// Does the same for a thread of another library, which may not hold the GIL. The thread never falls asleep.
class InsideWithoutGil {
public:
    InsideWithoutGil();
    ~InsideWithoutGil();
    InsideWithoutGil(const InsideWithoutGil&) = delete;
    InsideWithoutGil& operator=(const InsideWithoutGil&) = delete;
};

// Releases the GIL while the object lives.
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

// Returns the array in C order, aligned and in native byte order: itself or a copy.
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
void register_cuda(py::module_& module);
void register_tensor_calls(py::module_& module);
void register_steps(py::module_& module);  // takes tensor calls
void register_layers(py::module_& module);
void register_network(py::module_& module);
void register_streams(py::module_& module);
void register_xla(py::module_& module);

// Makes uses of the module's classes that would crash pybind11 raise a TypeError. Call this after all other functions.
void secure_classes(const py::module_& module);

}  // namespace vkrnn::python
