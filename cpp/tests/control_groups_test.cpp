// Tests limits of control groups, read from a folder in place of the root of the file system.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "base/control_groups.h"
#include "base/system.h"

namespace vkrnn {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kNoMemoryLimit = std::numeric_limits<std::uint64_t>::max();
constexpr unsigned kNoQuota = std::numeric_limits<unsigned>::max();
constexpr std::uint64_t kMiB = 1 << 20;

// The limit that version 1 reports for a group without a limit.
const std::string kOldUnlimited = "9223372036854771712\n";

class ControlGroupsTest : public testing::Test {
protected:
    void SetUp() override {
        const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
        root_ = fs::temp_directory_path() / ("vkrnn-" + std::to_string(system::process_id()) + test->name());
        write("proc/self/mountinfo", "21 1 8:1 / / rw,relatime - ext4 /dev/root rw\n");
    }
    void TearDown() override { fs::remove_all(root_); }

    void write(const std::string& file, const std::string& text) const {
        fs::create_directories((root_ / file).parent_path());
        std::ofstream(root_ / file) << text;
    }
    void belong_to(const std::string& groups) const { write("proc/self/cgroup", groups); }
    void mount(const std::string& root, const std::string& point, const std::string& type_and_options) const {
        std::ofstream(root_ / "proc/self/mountinfo", std::ios::app)
            << "31 21 0:28 " << root << ' ' << point << " rw,nosuid shared:9 master:2 - " << type_and_options << '\n';
    }
    void limit_memory(const std::string& group, std::uint64_t limit, std::uint64_t used, std::uint64_t cached) const {
        write(group + "/memory.max", std::to_string(limit) + "\n");
        write(group + "/memory.current", std::to_string(used) + "\n");
        write(group + "/memory.stat", "anon 1\ninactive_file " + std::to_string(cached) + "\nactive_file 7\n");
    }
    void limit_old_memory(const std::string& group, const std::string& limit, std::uint64_t used,
                          const std::string& statistics) const {
        write(group + "/memory.limit_in_bytes", limit);
        write(group + "/memory.usage_in_bytes", std::to_string(used) + "\n");
        write(group + "/memory.stat", "cache 1\ninactive_file 3\n" + statistics);
    }

    void expect(std::uint64_t memory, unsigned processors) const {
        ControlGroups groups(root_);
        EXPECT_EQ(groups.memory_available(), memory);
        EXPECT_EQ(groups.processors(), processors);
    }

    fs::path root_;
};

TEST_F(ControlGroupsTest, MissingGroupsSetNoLimit) {
    expect(kNoMemoryLimit, kNoQuota);  // not even /proc/self/cgroup
    belong_to("0::/\n");
    expect(kNoMemoryLimit, kNoQuota);
    mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw");
    expect(kNoMemoryLimit, kNoQuota);
}

TEST_F(ControlGroupsTest, Version2TakesTheSmallestLimitOfAllParents) {
    belong_to("0::/outer/middle/own\n");
    mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw,nsdelegate");
    const std::string outer = "sys/fs/cgroup/outer", middle = outer + "/middle", own = middle + "/own";
    write(own + "/memory.max", "max\n");
    write(own + "/memory.current", "5\n");
    write(own + "/cpu.max", "max 100000\n");
    expect(kNoMemoryLimit, kNoQuota);
    limit_memory(outer, 100 * kMiB, 90 * kMiB, 20 * kMiB);
    write(outer + "/cpu.max", "350000 100000\n");
    expect(30 * kMiB, 4);
    limit_memory(middle, 50 * kMiB, 40 * kMiB, 0);
    write(middle + "/cpu.max", "150000 100000\n");
    expect(10 * kMiB, 2);
    limit_memory(own, 60 * kMiB, 1 * kMiB, 0);
    write(own + "/cpu.max", "800000 100000\n");
    expect(10 * kMiB, 2);
    limit_memory(own, 60 * kMiB, 70 * kMiB, 0);
    write(own + "/cpu.max", "1000 100000\n");
    expect(0, 1);
    // Groups that are not parents do not count.
    limit_memory(outer + "/other", 0, 0, 0);
    write(outer + "/other/cpu.max", "1000 100000\n");
    write(own + "/cpu.max", "200000 100000\n");
    expect(0, 2);
}

TEST_F(ControlGroupsTest, Version1TakesTheSmallestLimitOfAllParents) {
    belong_to("9:name=systemd:/\n4:memory:/outer/own\n2:cpuacct,cpu:/batch/job\n1:cpuset:/\n0::/\n");
    mount("/", "/sys/fs/cgroup/memory", "cgroup cgroup rw,memory");
    mount("/", "/sys/fs/cgroup/cpuset", "cgroup cgroup rw,cpuset");
    mount("/", "/sys/fs/cgroup/cpu,cpuacct", "cgroup cgroup rw,cpuacct,cpu");
    mount("/", "/sys/fs/cgroup/unified", "cgroup2 cgroup2 rw");
    const std::string memory = "sys/fs/cgroup/memory", cpu = "sys/fs/cgroup/cpu,cpuacct/batch";
    limit_old_memory(memory, kOldUnlimited, 900 * kMiB, "");
    limit_old_memory(memory + "/outer", kOldUnlimited, 800 * kMiB, "");
    limit_old_memory(memory + "/outer/own", kOldUnlimited, 0, "");
    write(cpu + "/job/cpu.cfs_quota_us", "-1\n");
    write(cpu + "/job/cpu.cfs_period_us", "100000\n");
    expect(std::stoull(kOldUnlimited) - 900 * kMiB, kNoQuota);
    limit_old_memory(memory + "/outer", "104857600\n", 90 * kMiB, "total_inactive_file 20971520\n");
    write(cpu + "/cpu.cfs_quota_us", "250000\n");
    write(cpu + "/cpu.cfs_period_us", "100000\n");
    expect(30 * kMiB, 3);
    limit_old_memory(memory + "/outer/own", "52428800\n", 40 * kMiB, "");
    write(cpu + "/job/cpu.cfs_quota_us", "50000\n");
    expect(10 * kMiB, 1);
    // The kernel reports the limits of parents, even if these are not mounted here.
    limit_old_memory(memory + "/outer/own", "52428800\n", 40 * kMiB, "hierarchical_memory_limit 42991616\n");
    expect(1 * kMiB, 1);
}

// The container's mount shows only its own group, and /proc/self/cgroup has the host's paths.
TEST_F(ControlGroupsTest, ContainersBeginAtTheirMountPoint) {
    belong_to("4:memory:/docker/12ab/inner\n0::/docker/12ab/inner\n");
    mount("/docker/12ab", "/sys/fs/cgroup/memory", "cgroup cgroup rw,memory");
    limit_old_memory("sys/fs/cgroup/memory", "104857600\n", 90 * kMiB, "");
    expect(10 * kMiB, kNoQuota);
    limit_old_memory("sys/fs/cgroup/memory/inner", "104857600\n", 99 * kMiB, "");
    expect(1 * kMiB, kNoQuota);
    // A version 2 mount without the group.
    mount("/docker/34cd", "/sys/fs/cgroup/two\\040words", "cgroup2 cgroup2 rw");
    write("sys/fs/cgroup/two words/cpu.max", "200000 100000\n");
    expect(1 * kMiB, 2);
}

TEST_F(ControlGroupsTest, LimitsAreReadAnew) {
    belong_to("0::/first\n");
    mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw");
    write("sys/fs/cgroup/first/cpu.max", "200000 100000\n");
    write("sys/fs/cgroup/second/cpu.max", "300000 100000\n");
    ControlGroups groups(root_);
    EXPECT_EQ(groups.processors(), 2u);
    write("sys/fs/cgroup/first/cpu.max", "500000 100000\n");
    EXPECT_EQ(groups.processors(), 5u);
    belong_to("0::/second\n");
    EXPECT_EQ(groups.processors(), 3u);
}

}  // namespace
}  // namespace vkrnn
