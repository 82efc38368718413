// Lists and opens Vulkan devices.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn::vk {

// Lists the devices, best first: discrete, integrated, virtual, others, CPUs; equal ones keep the loader's order.
// Throws DeviceError if there is no Vulkan loader, driver or device; the message says what to install.
std::vector<Profile> list();

// Opens the device at `index` of list(). Calls use the strategies in `fixed`. Throws DeviceError.
std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed);

}  // namespace vkrnn::vk
