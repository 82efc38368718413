// Lists and opens all devices of the machine: GPUs, then the CPU itself, then Vulkan on the CPU.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/reports.h"
#include "base/system.h"
#include "cpu/run/cpu_device.h"
#include "cuda/run/cuda_devices.h"
#include "vk/run/vulkan_devices.h"
#include "vkrnn/costs.h"
#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

// A device, and its position in its back end's own list.
struct Entry {
    Profile profile;
    std::size_t position = 0;
};

struct Listed {
    std::vector<Entry> entries;
    std::string problem;
};

// Inserts the CUDA devices, each after the Vulkan device of the same GPU, else after all GPUs.
void add_cuda(std::vector<Entry>& entries) {
    const auto [found, skipped, problem] = cuda::list();
    for (const SkippedDevice& device : skipped) report(Severity::info, "skipped " + device.name + ": " + device.reason);
    for (std::size_t i = 0; i < found.size(); ++i) {
        const auto uuid_of = [](const Entry& entry) { return entry.profile.uuid; };
        auto at = std::ranges::find(entries, found[i].second.uuid, uuid_of);
        if (at == entries.end())
            at = std::ranges::find(entries, DeviceType::cpu, [](const Entry& entry) { return entry.profile.type; });
        else
            ++at;
        entries.insert(at, {found[i].second, i});
    }
}

Listed list(bool complete) {
    Listed listed;
    if (complete || system::may_have_gpu()) {
        try {
            for (Profile& profile : vk::list()) listed.entries.push_back({std::move(profile), listed.entries.size()});
            for (const SkippedDevice& device : vk::skipped())
                report(Severity::info, "skipped " + device.name + ": " + device.reason);
        } catch (const DeviceError& error) {
            listed.problem = error.what();
            report(Severity::info, listed.problem);
        }
        add_cuda(listed.entries);
    }
    const auto first_cpu =
        std::ranges::find(listed.entries, DeviceType::cpu, [](const Entry& entry) { return entry.profile.type; });
    listed.entries.insert(first_cpu, {cpu::profile(), 0});
    return listed;
}

}  // namespace

std::vector<Profile> list_devices(bool complete) {
    std::vector<Profile> profiles;
    for (Entry& entry : list(complete).entries) profiles.push_back(std::move(entry.profile));
    return profiles;
}

std::string vulkan_problem() { return list(true).problem; }

std::string cuda_problem() { return cuda::list().problem; }

std::vector<SkippedDevice> skipped_devices(bool complete) {
    if (!complete && !system::may_have_gpu()) return {};
    std::vector<SkippedDevice> skipped = cuda::list().skipped;
    try {
        for (SkippedDevice& device : vk::skipped()) skipped.push_back(std::move(device));
    } catch (const DeviceError&) {  // vulkan_problem() reports it
    }
    return skipped;
}

std::vector<std::string> memory_types(std::size_t index) {
    const Listed listed = list(true);
    if (index >= listed.entries.size() || listed.entries[index].profile.backend != Backend::vulkan) return {};
    return vk::memory_types(listed.entries[index].position);
}

std::shared_ptr<Device> Device::open(std::size_t index, const StrategyChoice& fixed, const Tuning& tuning) {
    Listed listed = list(false);
    if (index >= listed.entries.size()) listed = list(true);
    if (index >= listed.entries.size())
        throw DeviceError("expected a device from 0 to " + std::to_string(listed.entries.size() - 1) + ", got " +
                          std::to_string(index));
    const auto& [profile, position] = listed.entries[index];
    const bool chooses = fixed == StrategyChoice{} && tuning.empty();
    if (const std::string message = borrowed_costs(profile); chooses && !message.empty())
        report(Severity::info, message);
    switch (profile.backend) {
        case Backend::vulkan: return vk::open(position, fixed, tuning);
        case Backend::cuda: return cuda::open(position, fixed, tuning);
        case Backend::native: break;
    }
    return std::make_shared<cpu::CpuDevice>(fixed);
}

NetworkPlan Device::plan_network(const NetworkSpec& spec, bool tf32) {
    const auto plan_of = [&](const Spec& layer) { return plan_call(layer, tf32); };
    return make_network_plan(spec, profile(), plan_of, fixed().wavefront);
}

std::shared_ptr<Device> Device::open_cpu() { return std::make_shared<cpu::CpuDevice>(StrategyChoice{}); }

}  // namespace vkrnn
