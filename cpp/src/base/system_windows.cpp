#define NOMINMAX
#define WIN32_LEAN_AND_MEAN

#include <malloc.h>
#include <process.h>
#include <windows.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "base/system.h"
#include "vkrnn/environment.h"

namespace vkrnn::system {
namespace {

// Windows divides the processors into groups of up to 64. A word of Processors is a group, and a thread has one group.
GROUP_AFFINITY affinity_of(const Processors& processors) {
    GROUP_AFFINITY affinity{};
    for (std::size_t i = 0; i < processors.words.size(); ++i)
        if (affinity.Mask == 0) {
            affinity.Group = static_cast<WORD>(i);
            affinity.Mask = processors.words.at(i);
        }
    return affinity;
}

std::uint64_t ticks_of(FILETIME time) { return std::uint64_t{time.dwHighDateTime} << 32 | time.dwLowDateTime; }

MEMORYSTATUSEX memory_status() {
    MEMORYSTATUSEX status{};
    status.dwLength = sizeof status;
    GlobalMemoryStatusEx(&status);
    return status;
}

struct Start {
    void* (*body)(void*);
    void* argument;
};

unsigned __stdcall run(void* start) {
    const Start made = *static_cast<const Start*>(start);
    delete static_cast<const Start*>(start);  // NOLINT(cppcoreguidelines-owning-memory)
    made.body(made.argument);
    return 0;
}

}  // namespace

long process_id() { return _getpid(); }

bool at_fork(void (* /*before*/)(), void (* /*in_parent*/)(), void (* /*in_child*/)()) { return false; }

void skip_exit_functions() {}

void* open_library(const std::string& name) { return reinterpret_cast<void*>(LoadLibraryA(name.c_str())); }

void* find_loaded_library(const std::string& name) { return reinterpret_cast<void*>(GetModuleHandleA(name.c_str())); }

void* find_function(void* library, const char* name) {
    return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

unsigned long long visit_libraries(const std::function<void(std::string_view)>& /*visit*/) { return 0; }

std::optional<Processors> processors_of_this_thread() {
    GROUP_AFFINITY affinity{};
    if (GetThreadGroupAffinity(GetCurrentThread(), &affinity) == 0) return std::nullopt;
    Processors found;
    found.words.at(affinity.Group) = affinity.Mask;
    return found;
}

int current_processor() {
    PROCESSOR_NUMBER number{};
    GetCurrentProcessorNumberEx(&number);
    return static_cast<int>(number.Group * Processors::kWordBits + number.Number);
}

std::optional<Thread> start_thread(void* (*body)(void*), void* argument) noexcept {
    std::unique_ptr<Start> start(new (std::nothrow) Start{body, argument});
    if (!start) return std::nullopt;
    const Thread thread = _beginthreadex(nullptr, 0, run, start.get(), 0, nullptr);
    if (thread == 0) return std::nullopt;
    static_cast<void>(start.release());
    // New threads may use all processors of the process.
    if (const auto processors = allowed_processors()) set_processors(thread, *processors);
    return thread;
}

bool set_processors(Thread thread, const Processors& processors) {
    const GROUP_AFFINITY affinity = affinity_of(processors);
    return SetThreadGroupAffinity(reinterpret_cast<HANDLE>(thread), &affinity, nullptr) != 0;
}

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::nanoseconds most) {
    WaitOnAddress(&word, &value, sizeof value,
                  static_cast<DWORD>(std::chrono::ceil<std::chrono::milliseconds>(most).count()));
}

void wake_all(std::atomic<std::uint32_t>& word) { WakeByAddressAll(&word); }

std::chrono::nanoseconds thread_time() { return std::chrono::steady_clock::now().time_since_epoch(); }

std::chrono::nanoseconds process_time() {
    FILETIME created{}, ended{}, kernel{}, user{};
    if (GetProcessTimes(GetCurrentProcess(), &created, &ended, &kernel, &user) == 0) return {};
    return std::chrono::nanoseconds(100 * (ticks_of(kernel) + ticks_of(user)));
}

std::optional<ThreadClock> clock_of_this_thread() { return std::nullopt; }

std::optional<std::chrono::nanoseconds> read_clock(ThreadClock /*clock*/) { return std::nullopt; }

void* allocate_memory(std::size_t alignment, std::size_t bytes) noexcept { return _aligned_malloc(bytes, alignment); }

void free_memory(void* memory) noexcept { _aligned_free(memory); }

std::uint64_t physical_memory() { return memory_status().ullTotalPhys; }

std::uint64_t available_memory() {
    const MEMORYSTATUSEX status = memory_status();
    if (status.ullTotalPhys == 0) return std::numeric_limits<std::uint64_t>::max();
    return std::min(status.ullAvailPhys, status.ullAvailPageFile);
}

std::string processor_name() {
    std::array<char, 256> name{};
    auto bytes = static_cast<DWORD>(name.size());
    const LSTATUS status = RegGetValueA(HKEY_LOCAL_MACHINE, R"(HARDWARE\DESCRIPTION\System\CentralProcessor\0)",
                                        "ProcessorNameString", RRF_RT_REG_SZ, nullptr, name.data(), &bytes);
    return status == ERROR_SUCCESS ? name.data() : "";
}

std::uint64_t second_level_cache() {
    using Information = SYSTEM_LOGICAL_PROCESSOR_INFORMATION;
    DWORD bytes = 0;
    GetLogicalProcessorInformation(nullptr, &bytes);
    std::vector<Information> all(bytes / sizeof(Information));
    if (all.empty() || GetLogicalProcessorInformation(all.data(), &bytes) == 0) return 0;
    for (const Information& each : all)
        if (each.Relationship == RelationCache && each.Cache.Level == 2) return each.Cache.Size;
    return 0;
}

bool may_have_gpu() { return true; }

std::filesystem::path cache_folder(const char* program) {
    const std::filesystem::path local = environment_variable("LOCALAPPDATA").value_or("");
    return local.empty() ? local : local / program / "Cache";
}

}  // namespace vkrnn::system
