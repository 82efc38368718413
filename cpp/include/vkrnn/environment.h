// Reads environment variables without data races.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

namespace vkrnn {

// The variables that every call on a CPU device reads.
inline constexpr std::array<const char*, 2> kCallVariables{"VKRNN_NUM_THREADS", "OMP_NUM_THREADS"};

// The variables that are read when devices are listed or opened.
inline constexpr std::array<const char*, 12> kDeviceVariables{"VK_DRIVER_FILES",
                                                              "VK_ICD_FILENAMES",
                                                              "VK_ADD_DRIVER_FILES",
                                                              "VKRNN_CPU_TARGET",
                                                              "VKRNN_VALIDATION",
                                                              "VKRNN_STAGING",
                                                              "VKRNN_NVRTC",
                                                              "VKRNN_CUBLASLT",
                                                              "VKRNN_CACHE_DIR",
                                                              "XDG_CACHE_HOME",
                                                              "HOME",
                                                              "LOCALAPPDATA"};

// The values that environment variables had when the object was made. `names` must outlive it.
struct EnvironmentValues {
    explicit EnvironmentValues(std::span<const char* const> all);

    std::span<const char* const> names;
    std::array<std::optional<std::string>, kDeviceVariables.size()> values;
};

// A copy of some environment variables. While it exists, the core reads these variables from the copy in calls of the
// same thread. Without a copy, the core calls std::getenv, which may crash while another thread changes the
// environment. A program with such threads makes a copy before each call, at a time when no thread can change the
// environment. A Python module does so while it holds the GIL, or makes the copy from values that it read earlier.
// Destroy the copies of a thread in reverse order.
class EnvironmentCopy {
public:
    explicit EnvironmentCopy(std::span<const char* const> names) : EnvironmentCopy(EnvironmentValues(names)) {}
    explicit EnvironmentCopy(EnvironmentValues values);
    ~EnvironmentCopy();
    EnvironmentCopy(const EnvironmentCopy&) = delete;
    EnvironmentCopy& operator=(const EnvironmentCopy&) = delete;

private:
    friend std::optional<std::string> environment_variable(const char* name);

    const EnvironmentValues read_;
    const EnvironmentCopy* const before_;
};

// Returns the variable's value, or nothing if it is not set. Reads it from the thread's latest copy if that has the
// variable.
std::optional<std::string> environment_variable(const char* name);

// Returns the folder for caches and tuning tables: $VKRNN_CACHE_DIR if it is set, else the folder that the Python
// package platformdirs returns. That is $XDG_CACHE_HOME/vkrnn, else ~/.cache/vkrnn (macOS: ~/Library/Caches/vkrnn;
// Windows: %LOCALAPPDATA%/vkrnn/Cache). Empty if none of these variables is set.
std::string cache_directory();

}  // namespace vkrnn
