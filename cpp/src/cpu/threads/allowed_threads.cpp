#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <limits>
#include <mutex>
#include <string>
#include <thread>

#include "base/control_groups.h"
#include "base/fork_safe_mutex.h"
#include "base/system.h"
#include "cpu/threads/team.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"
#include "vkrnn/openmp.h"

namespace vkrnn::cpu {
namespace {

constexpr unsigned kNoLimit = std::numeric_limits<unsigned>::max();

unsigned by_affinity() {
    if (const auto allowed = system::allowed_processors()) return std::max(1U, allowed->count());
    return std::max(1U, std::thread::hardware_concurrency());
}

// Reads the CPU quota of the control groups at most ten times a second, because that takes longer than a small call.
class Quota {
public:
    unsigned read() {
        if (is_due()) {
            const std::lock_guard lock(mutex_);
            if (is_due()) {
                processors_ = groups_.processors();
                read_at_ = now();
            }
        }
        return processors_;
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr Clock::rep kNever = std::numeric_limits<Clock::rep>::min();

    static Clock::rep now() { return Clock::now().time_since_epoch().count(); }

    [[nodiscard]] bool is_due() const {
        const Clock::rep last = read_at_;
        return last == kNever || Clock::duration(now() - last) > std::chrono::milliseconds(100);
    }

    ForkSafeMutex mutex_;
    ControlGroups groups_;
    std::atomic<Clock::rep> read_at_ = kNever;
    std::atomic<unsigned> processors_ = kNoLimit;
};

// Never destroyed, because threads may still make calls while the process ends.
Quota& quota = *new Quota;  // NOLINT(cppcoreguidelines-owning-memory)

// Returns the positive number at the beginning of a text; 0 if there is none.
unsigned number_in(const std::string& text) {
    unsigned number = 0;
    const auto found = std::from_chars(text.data(), text.data() + text.size(), number);
    return found.ec == std::errc() ? number : 0;
}

unsigned by_variables(std::string_view prefix) {
    if (const auto own = environment_variable("VKRNN_NUM_THREADS"); own && !own->empty()) {
        const unsigned number = number_in(*own);
        if (number == 0)
            throw DeviceError(std::string(prefix) + "VKRNN_NUM_THREADS: expected a positive number, got '" + *own +
                              "'");
        return number;
    }
    if (const auto openmp = environment_variable("OMP_NUM_THREADS")) {
        if (const unsigned number = number_in(*openmp); number != 0) return number;  // "4,2": 4 on the first level
    }
    return kNoLimit;
}

unsigned by_openmp() {
    const OpenMP* const openmp = OpenMP::current();
    return openmp != nullptr ? openmp->max_threads() : kNoLimit;
}

}  // namespace

unsigned allowed_threads(std::string_view prefix) {
    return std::min({by_affinity(), quota.read(), by_variables(prefix), by_openmp()});
}

}  // namespace vkrnn::cpu
