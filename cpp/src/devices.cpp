// Lists and opens all devices of the machine: GPUs, then the CPU itself, then Vulkan on the CPU.
#include <algorithm>
#include <filesystem>
#include <string>

#include "cpu/device.h"
#include "reports.h"
#include "vk/run/open.h"
#include "vkrnn/costs.h"
#include "vkrnn/device.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

// Returns false if the machine certainly has no GPU, because a GPU always has a file in /dev. Querying the Vulkan
// drivers takes much longer.
bool may_have_gpu() {
#ifdef __linux__
    for (const char* variable : {"VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"})
        if (environment_variable(variable)) return true;
    std::error_code error;
    for (const char* folder : {"/dev", "/dev/dri"})
        for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
            const std::string name = entry.path().filename();
            for (const char* gpu : {"renderD", "nvidia", "dxg", "kfd", "kgsl", "mali", "pvr"})
                if (name.starts_with(gpu)) return true;
        }
    return false;
#else
    return true;
#endif
}

struct Listed {
    std::vector<Profile> profiles;
    std::size_t cpu = 0;  // position of the CPU itself
    std::string problem;
};

Listed list(bool complete) {
    Listed listed;
    if (complete || may_have_gpu()) {
        try {
            listed.profiles = vk::list();
            for (const SkippedDevice& device : vk::skipped())
                report(Severity::info, "skipped " + device.name + ": " + device.reason);
        } catch (const DeviceError& error) {
            listed.problem = error.what();
            report(Severity::info, listed.problem);
        }
    }
    const auto first_cpu = std::ranges::find(listed.profiles, DeviceType::cpu, &Profile::type);
    listed.cpu = static_cast<std::size_t>(first_cpu - listed.profiles.begin());
    listed.profiles.insert(first_cpu, cpu::profile());
    return listed;
}

}  // namespace

std::vector<Profile> list_devices(bool complete) { return list(complete).profiles; }

std::string vulkan_problem() { return list(true).problem; }

std::vector<SkippedDevice> skipped_devices(bool complete) {
    if (!complete && !may_have_gpu()) return {};
    try {
        return vk::skipped();
    } catch (const DeviceError&) {  // vulkan_problem() reports it
        return {};
    }
}

std::vector<std::string> memory_types(std::size_t index) {
    const Listed listed = list(true);
    if (index >= listed.profiles.size() || index == listed.cpu) return {};
    return vk::memory_types(index - (index > listed.cpu ? 1 : 0));
}

std::shared_ptr<Device> Device::open(std::size_t index, const StrategyChoice& fixed, const Tuning& tuning) {
    Listed listed = list(false);
    if (index >= listed.profiles.size()) listed = list(true);
    if (index >= listed.profiles.size())
        throw DeviceError("expected a device from 0 to " + std::to_string(listed.profiles.size() - 1) + ", got " +
                          std::to_string(index));
    const bool chooses = fixed == StrategyChoice{} && tuning.empty();
    if (const std::string message = borrowed_costs(listed.profiles[index]); chooses && !message.empty())
        report(Severity::info, message);
    if (index == listed.cpu) return std::make_shared<cpu::CpuDevice>(fixed);
    return vk::open(index - (index > listed.cpu ? 1 : 0), fixed, tuning);
}

std::shared_ptr<Device> Device::open_cpu() { return std::make_shared<cpu::CpuDevice>(StrategyChoice{}); }

}  // namespace vkrnn
