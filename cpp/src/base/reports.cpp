#include "reports.h"

#include <set>
#include <utility>

#include "fork_safe_mutex.h"

namespace vkrnn {
namespace {

constexpr std::size_t kMost = 1000;  // different texts; later ones are dropped

struct Reports {
    ForkSafeMutex mutex;
    std::set<std::string> texts;  // of all reports so far
    std::vector<Report> waiting;
};

// Never destroyed, because threads may still make reports while the process ends.
Reports& reports = *new Reports;  // NOLINT(cppcoreguidelines-owning-memory)

}  // namespace

void report(Severity severity, std::string text) {
    const std::lock_guard lock(reports.mutex);
    if (reports.texts.size() < kMost && reports.texts.insert(text).second)
        reports.waiting.push_back({severity, std::move(text)});
}

std::vector<Report> take_reports() {
    const std::lock_guard lock(reports.mutex);
    return std::exchange(reports.waiting, {});
}

}  // namespace vkrnn
