#include "vkrnn/openmp.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>

#include "vkrnn/error.h"

namespace vkrnn {
namespace {

thread_local const OpenMP* entered = nullptr;

template <class F>
void find(void* library, const char* name, F*& function, const std::string& user) {
    function = reinterpret_cast<F*>(dlsym(library, name));  // in the libraries that it depends on, too
    if (function == nullptr) throw DeviceError("the OpenMP library of " + user + " has no " + name);
}

struct Region {
    const OpenMP& openmp;
    unsigned threads;
    const std::function<void(unsigned)>& body;
    bool is_run = false;
};

}  // namespace

OpenMP::OpenMP(const std::string& user) : process_(getpid()) {
    void* const library = dlopen(user.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) throw DeviceError(user + " is not loaded");
    // It is not closed again: the threads run its code as long as the process lives.
    find(library, "GOMP_parallel", parallel_, user);
    find(library, "omp_get_thread_num", thread_number_, user);
    find(library, "omp_get_num_threads", number_of_threads_, user);
    find(library, "omp_get_max_threads", max_threads_, user);
}

void OpenMP::enter() const { entered = this; }

void OpenMP::leave() { entered = nullptr; }

const OpenMP* OpenMP::current() { return entered != nullptr && entered->process_ == getpid() ? entered : nullptr; }

unsigned OpenMP::max_threads() const { return static_cast<unsigned>(std::max(1, max_threads_())); }

void OpenMP::run_region(void* data) {
    auto& region = *static_cast<Region*>(data);
    const auto rank = static_cast<unsigned>(region.openmp.thread_number_());
    const bool enough = static_cast<unsigned>(region.openmp.number_of_threads_()) >= region.threads;
    if (rank == 0) region.is_run = enough;
    if (enough && rank < region.threads) region.body(rank);
}

bool OpenMP::run(unsigned threads, const std::function<void(unsigned)>& body) const {
    Region region{*this, threads, body};
    // Always all of them: GCC's library ends threads that a smaller region does not need, and the next makes them
    // again.
    parallel_(&run_region, &region, max_threads(), 0);
    return region.is_run;
}

}  // namespace vkrnn
