#include "process_id.h"

#ifdef _WIN32
#include <process.h>
#else
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#endif

namespace vkrnn {

#ifdef _WIN32

long process_id() { return _getpid(); }

#else

namespace {

// Kept, because a system call takes longer, above all in a container that intercepts it.
std::atomic<long> known = 0;

// Registered when the library is loaded, before any thread of it can run.
[[maybe_unused]] const int renewed_after_a_fork = [] {
    known = getpid();
    return pthread_atfork(nullptr, nullptr, [] { known = getpid(); });
}();

}  // namespace

long process_id() {
    const long found = known.load(std::memory_order_relaxed);
    return found != 0 ? found : getpid();  // 0 while libraries are loaded
}

#endif

}  // namespace vkrnn
