// What Linux and macOS share.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "base/system.h"

namespace vkrnn::system {
namespace {

// Kept, because a system call takes longer, above all in a container that intercepts it.
std::atomic<long> known_id = 0;

// Registered when the library is loaded, before any thread of it can run.
[[maybe_unused]] const bool renewed_after_a_fork = [] {
    known_id = getpid();
    return at_fork(nullptr, nullptr, [] { known_id = getpid(); });
}();

std::chrono::nanoseconds show(clockid_t clock) {
    timespec time{};
    if (clock_gettime(clock, &time) != 0) return {};
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

long process_id() {
    const long found = known_id.load(std::memory_order_relaxed);
    return found != 0 ? found : getpid();  // 0 while libraries are loaded
}

bool at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) {
    return pthread_atfork(before, in_parent, in_child) == 0;
}

void* open_library(const std::string& name) { return dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); }

void* find_loaded_library(const std::string& name) { return dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD); }

void* find_function(void* library, const char* name) { return dlsym(library, name); }

std::optional<Thread> start_thread(void* (*body)(void*), void* argument) noexcept {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    // The thread blocks all signals: the program's own threads handle them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread{};
    const int failed = pthread_create(&thread, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    return failed == 0 ? std::optional(std::bit_cast<Thread>(thread)) : std::nullopt;
}

std::chrono::nanoseconds thread_time() { return show(CLOCK_THREAD_CPUTIME_ID); }

std::chrono::nanoseconds process_time() { return show(CLOCK_PROCESS_CPUTIME_ID); }

void free_memory(void* memory) noexcept { std::free(memory); }  // NOLINT(cppcoreguidelines-no-malloc)

}  // namespace vkrnn::system
