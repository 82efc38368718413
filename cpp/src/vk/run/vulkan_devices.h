// Lists and opens Vulkan devices.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn::vk {

// Lists the devices, best first: discrete, integrated, virtual, others, CPUs. Devices of one kind stay in the loader's
// order. Throws DeviceError if there is no Vulkan loader, driver or device; the message says what to install.
std::vector<Profile> list();

// Lists the devices that list() leaves out. Throws like list().
std::vector<SkippedDevice> skipped();

// Describes the memory of the device at `index` of list(). Throws DeviceError.
std::vector<std::string> memory_types(std::size_t index);

// Opens the device at `index` of list(). Calls use the strategies in `fixed`, or else those chosen by tuning. Throws
// DeviceError.
std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed, const Tuning& tuning = {});

}  // namespace vkrnn::vk
