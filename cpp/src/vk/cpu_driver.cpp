#include "cpu_driver.h"

#ifdef __linux__
#include <dirent.h>
#include <sched.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>
#endif

namespace vkrnn::vk {

#ifdef __linux__
namespace {

constexpr const char* kThreads = "LP_NUM_THREADS";
constexpr const char* kVectorWidth = "LP_NATIVE_VECTOR_WIDTH";
constexpr std::size_t kLargestTeam = 8;
constexpr std::uint64_t kSameMoment = 5;  // clock ticks, of 10 ms mostly, between the starts of threads made together

struct Thread {
    pid_t id = 0;
    std::string name;
    std::uint64_t started = 0;  // clock ticks
};

std::optional<Thread> read_thread(const std::string& id) {
    std::ifstream file("/proc/self/task/" + id + "/stat");
    std::string text;
    std::getline(file, text);
    const auto open = text.find('('), close = text.rfind(')');
    if (open == std::string::npos || close == std::string::npos) {
        return std::nullopt;
    }
    // Field 3 follows the name; field 22 is the start.
    std::size_t at = close + 1;
    for (int field = 3; field <= 22 && at != std::string::npos; ++field) {
        at = text.find(' ', at + (field > 3 ? 1 : 0));
    }
    if (at == std::string::npos) {
        return std::nullopt;
    }
    return Thread{static_cast<pid_t>(std::strtol(id.c_str(), nullptr, 10)), text.substr(open + 1, close - open - 1),
                  std::strtoull(text.c_str() + at, nullptr, 10)};
}

std::vector<Thread> threads() {
    std::vector<Thread> found;
    if (DIR* folder = opendir("/proc/self/task")) {
        while (const dirent* entry = readdir(folder)) {
            if (entry->d_name[0] == '.') {
                continue;
            }
            if (auto thread = read_thread(entry->d_name)) {
                found.push_back(std::move(*thread));
            }
        }
        closedir(folder);
    }
    std::sort(found.begin(), found.end(), [](const Thread& a, const Thread& b) { return a.id < b.id; });
    return found;
}

// The driver names its rasterizer threads llvmpipe-0, -1, ...; as many compute threads follow, made in the same moment
// and called as whoever made them.
std::vector<pid_t> workers() {
    const std::vector<Thread> all = threads();
    std::vector<pid_t> found;
    std::size_t rasterizers = 0;
    Thread last;
    for (const Thread& thread : all) {
        if (thread.name.rfind("llvmpipe-", 0) == 0) {
            ++rasterizers;
            last = thread;
        }
    }
    for (const Thread& thread : all) {
        if (thread.id > last.id && found.size() < rasterizers && thread.name.find('$') == std::string::npos &&
            thread.started <= last.started + kSameMoment) {
            found.push_back(thread.id);
        }
    }
    return found.size() == rasterizers ? found : std::vector<pid_t>{};
}

// Of the calling thread.
void set_affinity(const std::vector<int>& processors) {
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    for (const int processor : processors) {
        CPU_SET(processor, &wanted);
    }
    sched_setaffinity(0, sizeof(wanted), &wanted);
}

}  // namespace

std::size_t team_size() {
    cpu_set_t allowed;
    if (std::getenv(kThreads) != nullptr || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return 1;
    }
    const auto processors = static_cast<std::size_t>(CPU_COUNT(&allowed));
    return processors <= kLargestTeam ? processors : 1;
}

OnProcessor::OnProcessor(std::optional<std::size_t> n) {
    cpu_set_t allowed;
    if (!n || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return;
    }
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
        if (CPU_ISSET(processor, &allowed)) {
            before_.push_back(processor);
        }
    }
    set_affinity({before_[*n % before_.size()]});
}

OnProcessor::~OnProcessor() {
    if (!before_.empty()) {
        set_affinity(before_);
    }
}

WithoutThreads::WithoutThreads() { setenv(kThreads, "0", 1); }
WithoutThreads::~WithoutThreads() { unsetenv(kThreads); }

bool WideVectors::possible() {
#ifdef __x86_64__
    // AVX-512 as far as LLVM takes it for granted at that width.
    return std::getenv(kVectorWidth) == nullptr && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

WideVectors::WideVectors() { setenv(kVectorWidth, "512", 1); }
WideVectors::~WideVectors() { unsetenv(kVectorWidth); }

void pin_workers() {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return;
    }
    const std::vector<pid_t> found = workers();
    if (static_cast<std::size_t>(CPU_COUNT(&allowed)) < found.size()) {
        return;
    }
    int processor = -1;
    for (const pid_t thread : found) {
        do {
            ++processor;
        } while (!CPU_ISSET(processor, &allowed));
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(processor, &one);
        sched_setaffinity(thread, sizeof(one), &one);
    }
}
#else
std::size_t team_size() { return 1; }
OnProcessor::OnProcessor(std::optional<std::size_t>) {}
OnProcessor::~OnProcessor() = default;
WithoutThreads::WithoutThreads() = default;
WithoutThreads::~WithoutThreads() = default;
bool WideVectors::possible() { return false; }
WideVectors::WideVectors() = default;
WideVectors::~WideVectors() = default;
void pin_workers() {}
#endif

}  // namespace vkrnn::vk
