// The Vulkan devices: listed, opened.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn::vk {

// Best first: discrete, integrated, virtual, others, CPUs; the loader's order among equals. Throws DeviceError where
// there is no Vulkan loader, driver or device, with what to install.
std::vector<Profile> list();

// Opens the one at `index` of list(), to run calls with the strategies that are fixed. Throws DeviceError.
std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed);

}  // namespace vkrnn::vk
