#include "host_memory.h"

#ifdef __linux__
#include <sys/resource.h>
#endif

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "control_groups.h"

namespace vkrnn {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

// Returns a number of KiB in a file of /proc, in bytes. `name` begins its line, with the colon.
std::uint64_t kibibytes_in(const char* path, std::string_view name, std::uint64_t otherwise) {
    std::ifstream file(path);
    for (std::string word; file >> word; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
        std::uint64_t kibibytes = 0;
        if (word == name && file >> kibibytes) return kibibytes * 1024;
    }
    return otherwise;
}

#ifdef __linux__
// Returns what a limit of the process leaves. `line` of /proc/self/status says how much is used.
std::uint64_t left_by(decltype(RLIMIT_AS) resource, std::string_view line) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknown;
    const std::uint64_t used = kibibytes_in("/proc/self/status", line, 0);
    return limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used);
}

// Returns what `ulimit -v` and `ulimit -d` leave.
std::uint64_t process_memory_available() {
    return std::min(left_by(RLIMIT_AS, "VmSize:"), left_by(RLIMIT_DATA, "VmData:"));
}
#else
std::uint64_t process_memory_available() { return kUnknown; }
#endif

}  // namespace

std::uint64_t host_memory_available() {
    return std::min({kibibytes_in("/proc/meminfo", "MemAvailable:", kUnknown), ControlGroups().memory_available(),
                     process_memory_available()});
}

}  // namespace vkrnn
