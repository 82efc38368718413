// Reads the limits of Linux control groups, version 1 and version 2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vkrnn {

// The control groups of this process: its own group in each hierarchy and all enclosing groups, whose limits also
// apply. Not thread-safe.
class ControlGroups {
public:
    // `root` is the folder that contains /proc and /sys. Only tests set it.
    explicit ControlGroups(std::filesystem::path root = "/") : root_(std::move(root)) {}

    // Returns the bytes that the process can still allocate; UINT64_MAX without a limit. Cached files do not count as
    // used, because the kernel drops them when memory is short.
    std::uint64_t memory_available();

    // Returns the smallest quota of processor time as a number of processors, rounded up; UINT_MAX without a quota.
    unsigned processors();

private:
    // A group's folder and the version of its hierarchy.
    struct Group {
        std::filesystem::path folder;
        int version;
    };

    // Looks up the groups again if the process was moved to other groups.
    void update();
    void add(std::vector<Group>& groups, const std::string& controller, const std::string& path, int version) const;

    std::filesystem::path root_;
    std::string membership_;  // the contents of /proc/self/cgroup when the groups were found
    std::vector<Group> memory_, cpu_;
};

}  // namespace vkrnn
