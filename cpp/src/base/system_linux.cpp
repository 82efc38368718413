#include <dlfcn.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <system_error>

#include "base/key_value_file.h"
#include "base/system.h"
#include "vkrnn/environment.h"

namespace vkrnn::system {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

static_assert(sizeof(cpu_set_t) == sizeof(Processors) && CPU_SETSIZE == Processors::kMost);

// Reads an amount in KiB from a file in /proc and returns it in bytes. `key` is the first word of its line, with the
// colon.
std::optional<std::uint64_t> bytes_after(const char* file, std::string_view key) {
    const auto kibibytes = number_after(file, key);
    return kibibytes ? std::optional(*kibibytes * 1024) : std::nullopt;
}

// Returns what is left of a resource limit of the process. `line` of /proc/self/status has the amount in use.
std::uint64_t left_by(decltype(RLIMIT_AS) resource, std::string_view line) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknown;
    const std::uint64_t used = bytes_after("/proc/self/status", line).value_or(0);
    return limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used);
}

}  // namespace

void skip_exit_functions() {
#ifdef __GLIBC__
    // The functions that were registered last run first.
    static_cast<void>(on_exit(
        [](int status, void*) {
            static_cast<void>(std::fflush(nullptr));
            _exit(status);
        },
        nullptr));
#endif
}

unsigned long long visit_libraries(const std::function<void(std::string_view)>& visit) {
    struct Visit {
        const std::function<void(std::string_view)>& each;
        unsigned long long loads = 0;
    } visits{visit};
    const auto look = [](dl_phdr_info* info, std::size_t /*size*/, void* data) {
        auto& made = *static_cast<Visit*>(data);
        made.loads = info->dlpi_adds;
        made.each(info->dlpi_name);
        return 0;
    };
    dl_iterate_phdr(look, &visits);
    return visits.loads;
}

std::optional<Processors> processors_of_this_thread() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return std::nullopt;
    return std::bit_cast<Processors>(set);
}

int current_processor() { return sched_getcpu(); }

bool set_processors(Thread thread, const Processors& processors) {
    const auto set = std::bit_cast<cpu_set_t>(processors);
    return pthread_setaffinity_np(std::bit_cast<pthread_t>(thread), sizeof set, &set) == 0;
}

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::nanoseconds most) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec timeout{seconds.count(), (most - seconds).count()};
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &timeout, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
}

std::optional<ThreadClock> clock_of_this_thread() {
    clockid_t clock{};
    return pthread_getcpuclockid(pthread_self(), &clock) == 0 ? std::optional<ThreadClock>(clock) : std::nullopt;
}

std::optional<std::chrono::nanoseconds> read_clock(ThreadClock clock) {
    timespec time{};
    if (clock_gettime(clock, &time) != 0) return std::nullopt;
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void* allocate_memory(std::size_t alignment, std::size_t bytes) noexcept {
    void* const memory = std::aligned_alloc(alignment, bytes);  // NOLINT(cppcoreguidelines-no-malloc)
    if (memory != nullptr && alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

std::uint64_t physical_memory() {
    return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

std::uint64_t available_memory() {
    return std::min({bytes_after("/proc/meminfo", "MemAvailable:").value_or(kUnknown),  //
                     left_by(RLIMIT_AS, "VmSize:"), left_by(RLIMIT_DATA, "VmData:")});
}

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("model name")) {
            const auto colon = line.find(": ");
            if (colon != std::string::npos) return line.substr(colon + 2);
        }
    }
    return {};
}

std::uint64_t second_level_cache() {
    const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? static_cast<std::uint64_t>(bytes) : 0;
}

bool may_have_gpu() {
    for (const char* variable : {"VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"})
        if (environment_variable(variable)) return true;
    // A GPU always has a file in /dev.
    std::error_code error;
    for (const char* folder : {"/dev", "/dev/dri"})
        for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
            const std::string name = entry.path().filename();
            for (const char* gpu : {"renderD", "nvidia", "dxg", "kfd", "kgsl", "mali", "pvr"})
                if (name.starts_with(gpu)) return true;
        }
    return false;
}

std::filesystem::path cache_folder(const char* program) {
    // The XDG specification says that relative paths are ignored.
    if (const std::filesystem::path xdg = environment_variable("XDG_CACHE_HOME").value_or(""); xdg.is_absolute())
        return xdg / program;
    const std::filesystem::path home = environment_variable("HOME").value_or("");
    return home.empty() ? home : home / ".cache" / program;
}

}  // namespace vkrnn::system
