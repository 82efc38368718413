// Threads: which one sees signals, what they wait for before a fork, and how threads inside the core stop when the
// process ends.
#ifndef _WIN32
#include <pthread.h>
#include <unistd.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <cxxabi.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "bindings.h"
#include "vkrnn/fork.h"
#include "vkrnn/openmp.h"
#include "vkrnn/poll_interval.h"

namespace vkrnn::python {
namespace {

using namespace std::chrono_literals;

// After this time the process ends anyway, in case a driver hangs.
constexpr auto kLongestEnd = 10s;

std::atomic<int> inside = 0;      // objects of Inside and InsideWithoutGil, except in threads that sleep for ever
thread_local int depth = 0;       // the same in this thread
std::set<unsigned long> stopped;  // identifies threads; does not change once `ending` is set
std::atomic<bool> ending = false;
std::atomic<PyObject*> own_poll = nullptr;  // see poll_for_test()

bool is_to_stay() { return ending && stopped.contains(PyThread_get_thread_ident()); }

// Sleeps for ever. The thread must not hold the GIL.
[[noreturn]] void stay() {
    inside -= depth;
    for (;;) std::this_thread::sleep_for(1h);
}

void stop_threads(std::set<unsigned long> threads) {
    if (!ending) stopped = std::move(threads);
    ending = true;
    const py::gil_scoped_release unlocked;
    const auto begun = std::chrono::steady_clock::now();
    while (inside > depth && std::chrono::steady_clock::now() - begun < kLongestEnd) {
        std::this_thread::sleep_for(1ms);
    }
}

// Lets every call run `function`, too, wherever it polls: after each piece of work and at each wait, in the thread that
// made the call. None ends that.
void poll_for_test(const py::object& function) {
    poll_interval = function.is_none() ? kPollInterval : 0ns;
    Py_XDECREF(own_poll.exchange(function.is_none() ? nullptr : py::object(function).release().ptr()));
}

}  // namespace

Inside::Inside() {
    ++depth;
    ++inside;  // before is_to_stay(): stop_threads() sets `ending` before it reads `inside`
    if (is_to_stay()) {
        PyEval_SaveThread();
        stay();
    }
}

Inside::~Inside() {
    --inside;
    --depth;
}

InsideWithoutGil::InsideWithoutGil() {
    ++depth;
    ++inside;
}

InsideWithoutGil::~InsideWithoutGil() {
    --inside;
    --depth;
}

Unlocked::Unlocked() : state_(PyEval_SaveThread()) {}

Unlocked::~Unlocked() {
    if (is_to_stay()) stay();
#ifdef __GLIBCXX__
    try {
        PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {  // the interpreter ended while the thread was inside
        stay();
    }
#else
    PyEval_RestoreThread(state_);
#endif
}

bool ending_without_gil() { return is_to_stay(); }

bool interrupted() {
    if (is_to_stay()) return true;
    if (own_poll != nullptr) {
        const py::gil_scoped_acquire gil;
        const py::object function = py::reinterpret_borrow<py::object>(own_poll.load());
        if (function && !py::reinterpret_steal<py::object>(PyObject_CallNoArgs(function.ptr()))) return true;
    }
#ifdef __linux__
    if (syscall(SYS_gettid) != getpid()) return false;
#endif
    const py::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

void register_threads(py::module_& module) {
#ifndef _WIN32
    pthread_atfork(nullptr, nullptr, [] { inside = depth; });  // the child only has this thread
    const py::cpp_function release(&release_after_fork);
    py::module_::import("os").attr("register_at_fork")(py::arg("before") = py::cpp_function(&hold_before_fork),
                                                       py::arg("after_in_parent") = release,
                                                       py::arg("after_in_child") = release);
#endif
    module.def("stop_threads", &stop_threads, py::arg("threads"));
    module.def("poll_for_test", &poll_for_test, py::arg("function"));
    py::class_<OpenMP>(module, "OpenMP")
        .def(py::init<const std::string&>(), py::arg("user"))
        .def("__enter__", [](const OpenMP& self) { self.enter(); })
        .def("__exit__", [](const OpenMP&, const py::args&) { OpenMP::leave(); });
}

}  // namespace vkrnn::python
