#include "reports.h"

#include <set>
#include <utility>

#include "fork_safe_mutex.h"

namespace vkrnn {
namespace {

constexpr std::size_t kMost = 1000;  // different texts; a process that has more of them has told enough

struct Reports {
    ForkSafeMutex mutex;
    std::set<std::string> told;
    std::vector<Report> waiting;
};

// The reports are never destroyed, because threads may still make some while the process ends.
Reports& reports() {
    static auto* const instance = new Reports;
    return *instance;
}

}  // namespace

void report(Severity severity, std::string text) {
    Reports& all = reports();
    const std::lock_guard lock(all.mutex);
    if (all.told.size() < kMost && all.told.insert(text).second) all.waiting.push_back({severity, std::move(text)});
}

std::vector<Report> take_reports() {
    Reports& all = reports();
    const std::lock_guard lock(all.mutex);
    return std::exchange(all.waiting, {});
}

}  // namespace vkrnn
