// Environment variables, read without a race.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

namespace vkrnn {

// The variables that every call on a CPU device reads.
inline constexpr std::array<const char*, 2> kCallVariables{"VKRNN_NUM_THREADS", "OMP_NUM_THREADS"};

// The variables that are read when devices are listed or opened.
inline constexpr std::array<const char*, 10> kDeviceVariables{
    "VK_DRIVER_FILES",  "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES",
    "VKRNN_CPU_TARGET", "VKRNN_VALIDATION", "VKRNN_STAGING",
    "VKRNN_CACHE_DIR",  "XDG_CACHE_HOME",   "HOME",
    "LOCALAPPDATA"};

// A copy of some variables. While it exists, the functions of the core that the same thread calls read these variables
// from the copy. Without a copy they call std::getenv, which may crash while another thread changes the environment. A
// program with such threads makes a copy before each call, at a moment when no thread changes the environment. A Python
// module does it while it holds the GIL. Copies of one thread are destroyed in the reverse order.
class EnvironmentCopy {
public:
    explicit EnvironmentCopy(std::span<const char* const> names);
    ~EnvironmentCopy();
    EnvironmentCopy(const EnvironmentCopy&) = delete;
    EnvironmentCopy& operator=(const EnvironmentCopy&) = delete;

private:
    friend std::optional<std::string> environment_variable(const char* name);

    std::span<const char* const> names_;
    std::array<std::optional<std::string>, kDeviceVariables.size()> values_;
    const EnvironmentCopy* const before_;
};

// Returns the variable's value, from the thread's latest copy if that has the variable; nothing if it is not set.
std::optional<std::string> environment_variable(const char* name);

// Returns the folder of caches and tuning tables: $VKRNN_CACHE_DIR, else where the Python package platformdirs has it:
// $XDG_CACHE_HOME/vkrnn, else ~/.cache/vkrnn, on macOS ~/Library/Caches/vkrnn; on Windows %LOCALAPPDATA%/vkrnn/Cache.
// Empty if the environment has no such variable.
std::string cache_directory();

}  // namespace vkrnn
