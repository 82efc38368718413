#include "control_groups.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "key_value_file.h"

namespace vkrnn {
namespace {

namespace fs = std::filesystem;

// Returns the number at the start of a file; nothing if the file starts with something else, such as "max".
template <class T>
std::optional<T> number_in(const fs::path& file) {
    std::ifstream stream(file);
    T value = 0;
    return stream >> value ? std::optional(value) : std::nullopt;
}

// Returns whether a comma-separated list such as "rw,cpu,cpuacct" contains the word.
bool has_word(const std::string& list, const std::string& word) {
    return (',' + list + ',').find(',' + word + ',') != std::string::npos;
}

// Decodes a field of /proc/self/mountinfo, where spaces, tabs, newlines and backslashes are written as "\040" and so
// on.
std::string unescaped(const std::string& text) {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 3 < text.size()) {
            plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            plain += text[i];
        }
    }
    return plain;
}

// Returns the path of `group` relative to `root`, the group that is visible at a hierarchy's mount point. Returns "."
// if the mount point does not show the group, as in a container whose /proc/self/cgroup has the host's paths.
fs::path below(const fs::path& group, const fs::path& root) {
    const fs::path relative = group.lexically_relative(root);
    return relative.empty() || *relative.begin() == ".." ? "." : relative;
}

struct Mount {
    fs::path root, point;
};

// Finds the mount point of a hierarchy: that of version 2, or that of version 1 with the controller.
std::optional<Mount> find_mount(const fs::path& mountinfo, const std::string& controller, int version) {
    std::ifstream file(mountinfo);
    for (std::string line; std::getline(file, line);) {
        // id, parent, device, root, mount point, options, optional fields, "-", type, source, options of the hierarchy
        std::istringstream fields(line);
        std::string skipped, root, point, type, source, options;
        fields >> skipped >> skipped >> skipped >> root >> point;
        while (fields >> skipped && skipped != "-") {
        }
        if (!(fields >> type >> source >> options)) continue;
        if (version == 2 ? type == "cgroup2" : type == "cgroup" && has_word(options, controller))
            return Mount{unescaped(root), unescaped(point)};
    }
    return std::nullopt;
}

}  // namespace

void ControlGroups::add(std::vector<Group>& groups, const std::string& controller, const std::string& path,
                        int version) const {
    const auto mount = find_mount(root_ / "proc/self/mountinfo", controller, version);
    if (!mount) return;
    const fs::path point = root_ / mount->point.relative_path();
    groups.push_back({point, version});
    fs::path folder = point;
    for (const fs::path& part : below(path, mount->root))
        if (part != ".") groups.push_back({folder /= part, version});
}

void ControlGroups::update() {
    std::ifstream file(root_ / "proc/self/cgroup");
    std::string membership{std::istreambuf_iterator<char>(file), {}};
    if (membership == membership_) return;
    memory_.clear();
    cpu_.clear();
    std::istringstream lines(membership);
    for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/path"; in version 2: "0::/path"
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
        const int version = controllers.empty() ? 2 : 1;
        if (version == 2 || has_word(controllers, "memory")) add(memory_, "memory", path, version);
        if (version == 2 || has_word(controllers, "cpu")) add(cpu_, "cpu", path, version);
    }
    membership_ = std::move(membership);
}

std::uint64_t ControlGroups::memory_available() {
    update();
    std::uint64_t available = std::numeric_limits<std::uint64_t>::max();
    for (const auto& [folder, version] : memory_) {
        const bool new_one = version == 2;
        auto limit = number_in<std::uint64_t>(folder / (new_one ? "memory.max" : "memory.limit_in_bytes"));
        const auto used = number_in<std::uint64_t>(folder / (new_one ? "memory.current" : "memory.usage_in_bytes"));
        if (!limit || !used) continue;
        const fs::path statistics = folder / "memory.stat";
        // In version 1, this is the smallest limit of all enclosing groups, including those that a container does not
        // see.
        if (!new_one) limit = std::min(*limit, number_after(statistics, "hierarchical_memory_limit").value_or(*limit));
        const std::uint64_t cached =
            number_after(statistics, new_one ? "inactive_file" : "total_inactive_file").value_or(0);
        const std::uint64_t taken = *used - std::min(*used, cached);
        available = std::min(available, *limit - std::min(*limit, taken));
    }
    return available;
}

unsigned ControlGroups::processors() {
    update();
    unsigned processors = std::numeric_limits<unsigned>::max();
    for (const auto& [folder, version] : cpu_) {
        double quota = 0, period = 0;
        if (version == 2) {
            std::ifstream file(folder / "cpu.max");  // "150000 100000" or "max 100000"
            if (!(file >> quota >> period)) continue;
        } else {
            quota = number_in<double>(folder / "cpu.cfs_quota_us").value_or(-1);  // -1: no quota
            period = number_in<double>(folder / "cpu.cfs_period_us").value_or(0);
        }
        if (quota > 0 && period > 0)
            processors = std::min(processors, static_cast<unsigned>(std::max(1.0, std::ceil(quota / period))));
    }
    return processors;
}

}  // namespace vkrnn
