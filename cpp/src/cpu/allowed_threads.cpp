#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "team.h"
#include "vkrnn/error.h"
#include "vkrnn/openmp.h"

namespace vkrnn::cpu {
namespace {

constexpr unsigned kNoLimit = std::numeric_limits<unsigned>::max();

unsigned by_affinity() {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
#endif
    return std::max(1U, std::thread::hardware_concurrency());
}

// The quota of the control group as a number of processors, rounded up: "max 100000" or "150000 100000".
unsigned read_quota() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period && period > 0) return static_cast<unsigned>(std::max(1.0, std::ceil(quota / period)));
    std::ifstream old_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), old_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (old_quota >> quota && old_period >> period && quota > 0 && period > 0)
        return static_cast<unsigned>(std::max(1.0, std::ceil(quota / period)));
    return kNoLimit;
}

// Reading the files takes longer than a small call, so that is done ten times a second at most.
unsigned by_quota() {
    using Clock = std::chrono::steady_clock;
    static std::atomic<Clock::rep> read_at = std::numeric_limits<Clock::rep>::min();
    static std::atomic<unsigned> quota = kNoLimit;
    const Clock::rep now = Clock::now().time_since_epoch().count();
    const Clock::rep last = read_at;
    if (last == std::numeric_limits<Clock::rep>::min() ||
        Clock::duration(now - last) > std::chrono::milliseconds(100)) {
        quota = read_quota();
        read_at = now;
    }
    return quota;
}

// A positive number at the beginning of a text; 0 where there is none.
unsigned number_in(const char* text) {
    unsigned number = 0;
    const auto found = std::from_chars(text, text + std::strlen(text), number);
    return found.ec == std::errc() ? number : 0;
}

unsigned by_variables() {
    if (const char* own = std::getenv("VKRNN_NUM_THREADS"); own != nullptr && *own != '\0') {
        const unsigned number = number_in(own);
        if (number == 0)
            throw DeviceError("VKRNN_NUM_THREADS: expected a positive number, got '" + std::string(own) + "'");
        return number;
    }
    if (const char* openmp = std::getenv("OMP_NUM_THREADS"); openmp != nullptr) {
        if (const unsigned number = number_in(openmp); number != 0) return number;  // "4,2": four on the first level
    }
    return kNoLimit;
}

unsigned by_openmp() {
    const OpenMP* const openmp = OpenMP::current();
    return openmp != nullptr ? openmp->max_threads() : kNoLimit;
}

}  // namespace

unsigned allowed_threads() { return std::min({by_affinity(), by_quota(), by_variables(), by_openmp()}); }

}  // namespace vkrnn::cpu
