#include "host_memory.h"

#ifdef __linux__
#include <sys/resource.h>
#endif

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace vkrnn {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

// The number that follows `key` in a file of "key number" lines.
std::optional<std::uint64_t> number_after(const char* path, const std::string& key) {
    std::ifstream file(path);
    for (std::string word; file >> word;) {
        std::uint64_t value = 0;
        if (word == key && file >> value) {
            return value;
        }
        file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    return std::nullopt;
}

std::optional<std::uint64_t> number_in(const char* path) {
    std::ifstream file(path);
    std::uint64_t value = 0;
    return file >> value ? std::optional(value) : std::nullopt;  // "max" is no number: no limit
}

std::uint64_t container_memory_available() {
    const auto limit = number_in("/sys/fs/cgroup/memory.max");
    const auto used = number_in("/sys/fs/cgroup/memory.current");
    if (!limit || !used) {
        return kUnknown;
    }
    // Cached files count as used but make way.
    const std::uint64_t cached = number_after("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0);
    const std::uint64_t taken = *used - std::min(*used, cached);
    return *limit - std::min(*limit, taken);
}

#ifdef __linux__
// Returns what a limit leaves of which the process has used the bytes in that line of /proc/self/status.
std::uint64_t left_by(const rlimit& limit, const std::string& line) {
    if (limit.rlim_cur == RLIM_INFINITY) {
        return kUnknown;
    }
    const std::uint64_t used = number_after("/proc/self/status", line).value_or(0) * 1024;
    return limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used);
}
#endif

// Returns what `ulimit -v` and `ulimit -d` leave to the process.
std::uint64_t process_memory_available() {
    std::uint64_t available = kUnknown;
#ifdef __linux__
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0) {
        available = std::min(available, left_by(limit, "VmSize:"));
    }
    if (getrlimit(RLIMIT_DATA, &limit) == 0) {
        available = std::min(available, left_by(limit, "VmData:"));
    }
#endif
    return available;
}

}  // namespace

std::uint64_t host_memory_available() {
    const auto kibibytes = number_after("/proc/meminfo", "MemAvailable:");
    return std::min(
        {kibibytes ? *kibibytes * 1024 : kUnknown, container_memory_available(), process_memory_available()});
}

}  // namespace vkrnn
