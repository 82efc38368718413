#include "host_memory.h"

#ifdef __linux__
#include <sys/resource.h>
#endif

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "control_groups.h"
#include "key_value_file.h"

namespace vkrnn {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

// Reads an amount in KiB from a file in /proc and returns it in bytes. `key` is the first word of its line, with the
// colon.
std::optional<std::uint64_t> bytes_after(const char* file, std::string_view key) {
    const auto kibibytes = number_after(file, key);
    return kibibytes ? std::optional(*kibibytes * 1024) : std::nullopt;
}

#ifdef __linux__
// Returns what is left of a resource limit of the process. `line` of /proc/self/status has the amount in use.
std::uint64_t left_by(decltype(RLIMIT_AS) resource, std::string_view line) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknown;
    const std::uint64_t used = bytes_after("/proc/self/status", line).value_or(0);
    return limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used);
}

// Returns what is left of the limits `ulimit -v` and `ulimit -d`.
std::uint64_t process_memory_available() {
    return std::min(left_by(RLIMIT_AS, "VmSize:"), left_by(RLIMIT_DATA, "VmData:"));
}
#else
std::uint64_t process_memory_available() { return kUnknown; }
#endif

}  // namespace

std::uint64_t host_memory_available() {
    return std::min({bytes_after("/proc/meminfo", "MemAvailable:").value_or(kUnknown),
                     ControlGroups().memory_available(), process_memory_available()});
}

}  // namespace vkrnn
