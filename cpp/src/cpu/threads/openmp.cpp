#include "vkrnn/openmp.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/system.h"
#include "cpu/threads/thread_pool.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

thread_local const OpenMP* entered = nullptr;

template <class F>
void find(void* library, const char* name, F*& function, const std::string& user) {
    function = reinterpret_cast<F*>(system::find_function(library, name));
    if (function == nullptr) throw DeviceError("the OpenMP library of " + user + " has no " + name);
}

// The second thread of the parallel regions that the calling thread runs: its CPU-time clock, and what the clock showed
// at the last forget_work().
struct SecondThread {
    std::optional<system::ThreadClock> clock;
    std::chrono::nanoseconds forgotten{0};
};
thread_local SecondThread second_thread;
// A thread that has used more CPU time than this has worked.
constexpr std::chrono::microseconds kWork{50};

// What the dynamic linker has loaded.
struct Libraries {
    unsigned long long loads = 0;     // loaded so far
    std::vector<std::string> openmp;  // paths of the OpenMP libraries
};

Libraries list_libraries() {
    static constexpr std::array<std::string_view, 3> kNames{"libgomp", "libomp", "libiomp5"};
    Libraries found;
    found.loads = system::visit_libraries([&](std::string_view path) {
        const std::string_view name = path.substr(path.rfind('/') + 1);
        if (std::ranges::any_of(kNames, [&](std::string_view each) { return name.starts_with(each); }))
            found.openmp.emplace_back(path);
    });
    return found;
}

struct Region {
    const OpenMP& openmp;
    unsigned threads;
    const std::function<void(unsigned)>& body;
    bool is_run = false;
};

}  // namespace

OpenMP::OpenMP(const std::string& user) : process_(system::process_id()) {
    void* const library = system::find_loaded_library(user);
    if (library == nullptr) throw DeviceError(user + " is not loaded");
    // The library is never closed: its threads run its code as long as the process lives.
    find(library, "GOMP_parallel", parallel_, user);
    find(library, "omp_get_thread_num", thread_number_, user);
    find(library, "omp_get_num_threads", number_of_threads_, user);
    find(library, "omp_get_max_threads", max_threads_, user);
}

void OpenMP::enter() const { entered = this; }

void OpenMP::leave() { entered = nullptr; }

const OpenMP* OpenMP::current() {
    return entered != nullptr && entered->process_ == system::process_id() ? entered : nullptr;
}

const OpenMP* OpenMP::loaded() {
    // The parent may have used the library before anything looked for it here.
    if (cpu::forks() != 0) return nullptr;
    // Uses no lock, because another thread might hold it while the process is forked.
    static constinit std::atomic<const OpenMP*> kept = nullptr;
    static constinit std::atomic<unsigned long long> looked_after = 0;
    const OpenMP* found = kept.load();
    if (found == nullptr) {
        const Libraries libraries = list_libraries();
        if (looked_after.exchange(libraries.loads) == libraries.loads) return nullptr;
        for (const std::string& path : libraries.openmp) {
            try {
                auto made = std::make_unique<const OpenMP>(path);
                if (kept.compare_exchange_strong(found, made.get())) found = made.release();
                break;
            } catch (const DeviceError&) {
                continue;  // its interface is another one
            }
        }
    }
    return found;
}

bool OpenMP::has_worked() const {
    SecondThread& second = second_thread;
    if (second.clock) {
        const auto now = system::read_clock(*second.clock);
        if (now) return *now - second.forgotten > kWork;
    }
    second.clock.reset();
    std::optional<system::ThreadClock> clock;
    const bool is_run = run(2, [&](unsigned rank) {
        if (rank == 1) clock = system::clock_of_this_thread();
    });
    if (is_run) second.clock = clock;
    forget_work();
    return false;
}

void OpenMP::forget_work() {
    SecondThread& second = second_thread;
    if (second.clock) second.forgotten = system::read_clock(*second.clock).value_or(second.forgotten);
}

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
    // The region always has all threads. GCC's library ends the threads that a smaller region does not need, and
    // creates them again for the next one.
    parallel_(&run_region, &region, max_threads(), 0);
    return region.is_run;
}

}  // namespace vkrnn
