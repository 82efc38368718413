// Replaces the Vulkan back end in builds without it, and says why there are no such devices.
#include "vk/run/vulkan_devices.h"
#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn::vk {
namespace {

[[noreturn]] void refuse() {
    throw DeviceError(
        "this vkrnn was built without Vulkan; to use GPUs, build it with -C cmake.define.VKRNN_VULKAN=ON");
}

}  // namespace

std::vector<Profile> list() { refuse(); }
std::vector<SkippedDevice> skipped() { refuse(); }
std::vector<std::string> memory_types(std::size_t /*index*/) { refuse(); }
std::shared_ptr<Device> open(std::size_t /*index*/, const StrategyChoice& /*fixed*/, const Tuning& /*tuning*/) {
    refuse();
}

}  // namespace vkrnn::vk

namespace vkrnn {

std::vector<std::string> validation_messages() { return {}; }

}  // namespace vkrnn
