#include <mach/mach.h>
#include <sys/sysctl.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/system.h"
#include "vkrnn/environment.h"

// Apple's C++ library waits with these functions, too. The system has public ones only since macOS 14.4.
extern "C" int __ulock_wait(std::uint32_t operation, void* address, std::uint64_t value, std::uint32_t microseconds);
extern "C" int __ulock_wake(std::uint32_t operation, void* address, std::uint64_t value);

namespace vkrnn::system {
namespace {

constexpr std::uint32_t kCompareAndWait = 1, kWakeAll = 0x100;

std::uint64_t number_of(const char* name) {
    std::uint64_t number = 0;
    std::size_t bytes = sizeof number;
    return sysctlbyname(name, &number, &bytes, nullptr, 0) == 0 ? number : 0;
}

}  // namespace

void skip_exit_functions() {}

unsigned long long visit_libraries(const std::function<void(std::string_view)>& /*visit*/) { return 0; }

std::optional<Processors> processors_of_this_thread() { return std::nullopt; }

int current_processor() { return -1; }

bool set_processors(Thread /*thread*/, const Processors& /*processors*/) { return false; }

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::nanoseconds most) {
    const auto microseconds = std::chrono::ceil<std::chrono::microseconds>(most).count();
    if (microseconds == 0) return;  // 0 would be for ever
    const auto limit = std::min<std::int64_t>(microseconds, std::numeric_limits<std::uint32_t>::max());
    __ulock_wait(kCompareAndWait, &word, value, static_cast<std::uint32_t>(limit));
}

void wake_all(std::atomic<std::uint32_t>& word) { __ulock_wake(kCompareAndWait | kWakeAll, &word, 0); }

std::optional<ThreadClock> clock_of_this_thread() { return std::nullopt; }

std::optional<std::chrono::nanoseconds> read_clock(ThreadClock /*clock*/) { return std::nullopt; }

void* allocate_memory(std::size_t alignment, std::size_t bytes) noexcept {
    return std::aligned_alloc(alignment, bytes);  // NOLINT(cppcoreguidelines-no-malloc)
}

std::uint64_t physical_memory() { return number_of("hw.memsize"); }

std::uint64_t available_memory() {
    vm_statistics64_data_t pages{};
    mach_msg_type_number_t words = HOST_VM_INFO64_COUNT;
    const kern_return_t status =
        host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &words);
    if (status != KERN_SUCCESS) return std::numeric_limits<std::uint64_t>::max();
    return (std::uint64_t{pages.free_count} + pages.inactive_count) * vm_page_size;
}

std::string processor_name() {
    std::array<char, 256> name{};
    std::size_t bytes = name.size() - 1;
    return sysctlbyname("machdep.cpu.brand_string", name.data(), &bytes, nullptr, 0) == 0 ? name.data() : "";
}

// The processors of a cluster share this cache.
std::uint64_t second_level_cache() {
    return number_of("hw.perflevel0.l2cachesize") / std::max<std::uint64_t>(1, number_of("hw.perflevel0.cpusperl2"));
}

bool may_have_gpu() { return true; }

std::filesystem::path cache_folder(const char* program) {
    const std::filesystem::path home = environment_variable("HOME").value_or("");
    return home.empty() ? home : home / "Library/Caches" / program;
}

}  // namespace vkrnn::system
