// What the core needs from the operating system beyond the C++ library. Each system has its own source:
// system_linux.cpp, system_macos.cpp and system_windows.cpp. system_posix.cpp has what Linux and macOS share.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace vkrnn::system {

// Chooses between the names of libraries and folders.
#ifdef _WIN32
inline constexpr bool kIsWindows = true;
#else
inline constexpr bool kIsWindows = false;
#endif

// --- Processes ---

// Returns the id of this process. Devices do not survive a fork, so a call asks for it a dozen times.
long process_id();

// Registers functions that each fork calls, as pthread_atfork does: before it, and after it in the parent and in the
// child. Each may be null. Returns whether the system has forks.
bool at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

// Lets exit() end the process without the exit functions that were registered before this call. Does nothing unless the
// C library is glibc.
void skip_exit_functions();

// --- Libraries ---

// Opens a shared library by a file name or a path. Returns null if there is none, or if it cannot be loaded.
void* open_library(const std::string& name);

// Returns a library that the process has loaded already; null if it has not.
void* find_loaded_library(const std::string& name);

// Returns the address of a function; null if the library has none of this name. Except on Windows, this also searches
// the libraries that it depends on.
void* find_function(void* library, const char* name);

// Calls `visit` with the path of each loaded library. Returns how many libraries have been loaded so far, which changes
// if there is a new one. On macOS and Windows, it visits none and returns 0.
unsigned long long visit_libraries(const std::function<void(std::string_view path)>& visit);

// --- Threads ---

// A set of logical processors.
struct Processors {
    static constexpr std::size_t kMost = 1024, kWordBits = 64;
    std::array<std::uint64_t, kMost / kWordBits> words{};

    void add(std::size_t processor) { words.at(processor / kWordBits) |= bit(processor); }
    [[nodiscard]] bool has(std::size_t processor) const {
        return (words.at(processor / kWordBits) & bit(processor)) != 0;
    }
    [[nodiscard]] unsigned count() const {
        unsigned sum = 0;
        for (const std::uint64_t word : words) sum += static_cast<unsigned>(std::popcount(word));
        return sum;
    }
    bool operator==(const Processors&) const = default;

private:
    static std::uint64_t bit(std::size_t processor) { return std::uint64_t{1} << processor % kWordBits; }
};

// If not 0, allowed_processors() returns the first processors, as many as this. For tests.
inline std::atomic<unsigned> pretended_processors = 0;

// Returns what the system says that the calling thread may use; nothing if it does not tell, as on macOS.
std::optional<Processors> processors_of_this_thread();

// Returns the processors that the calling thread may use, if they are known.
inline std::optional<Processors> allowed_processors() {
    const unsigned pretended = pretended_processors;
    if (pretended == 0) return processors_of_this_thread();
    Processors first;
    for (unsigned i = 0; i < pretended; ++i) first.add(i);
    return first;
}

// Returns the number of the processor that the calling thread uses now; -1 if the system does not tell.
int current_processor();

// A thread that runs until the process ends.
using Thread = std::uintptr_t;

// Starts a thread that handles no signals and may use the processors that the calling thread may use. Returns nothing
// if the system cannot create one. `body` must not return.
std::optional<Thread> start_thread(void* (*body)(void* argument), void* argument) noexcept;

// Lets a thread use these processors only. Returns false if that fails, as always on macOS.
bool set_processors(Thread thread, const Processors& processors);

// Sleeps while the word has this value, for at most the time `most`. May also wake up early without a reason.
void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::nanoseconds most);

// Wakes all threads that sleep because of the word.
void wake_all(std::atomic<std::uint32_t>& word);

// Returns the processor time that the calling thread has used. Windows only counts in clock ticks, which are longer
// than most calls. There, this is the time of the steady clock, as if the thread had never waited for a processor.
std::chrono::nanoseconds thread_time();

// Returns the processor time that all threads of the process have used.
std::chrono::nanoseconds process_time();

// A clock of a thread's processor time that other threads can read.
using ThreadClock = int;

// Returns the calling thread's clock; nothing on macOS and Windows.
std::optional<ThreadClock> clock_of_this_thread();

// Returns what the clock shows, or nothing if its thread has ended.
std::optional<std::chrono::nanoseconds> read_clock(ThreadClock clock);

// --- Memory ---

// Returns memory with undefined contents, for free_memory(); null if the system has none. `alignment` is a power of two
// that divides `bytes`. Memory that is aligned to kHugePage has huge pages if the system has them.
void* allocate_memory(std::size_t alignment, std::size_t bytes) noexcept;
void free_memory(void* memory) noexcept;
inline constexpr std::size_t kHugePage = 2 << 20;

// Returns the bytes of the machine's memory.
std::uint64_t physical_memory();

// Returns how many bytes the machine and limits of the process, such as `ulimit -v`, leave to it. Returns UINT64_MAX if
// neither can be read.
std::uint64_t available_memory();

// --- The machine ---

// Returns the name of the processor; an empty text if the system does not tell.
std::string processor_name();

// Returns the bytes of the second-level cache of one processor; 0 if the system does not tell.
std::uint64_t second_level_cache();

// Returns false if the machine certainly has no GPU. Querying the Vulkan drivers takes much longer.
bool may_have_gpu();

// Returns the folder in which a program of this name keeps what it can make again, for this user. Returns an empty path
// if the environment does not tell.
std::filesystem::path cache_folder(const char* program);

}  // namespace vkrnn::system
