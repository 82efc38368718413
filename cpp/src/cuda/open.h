// Lists and opens CUDA devices.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn::cuda {

// Lists the devices in the driver's order, with "cuda:0" and so on in their names. Empty without a driver, or without
// NVRTC, which compiles the kernels.
std::vector<Profile> list();

// Lists the devices that list() leaves out.
std::vector<SkippedDevice> skipped();

// Returns why the driver cannot be used; empty if it can.
std::string problem();

// Opens the device at `index` of list(). Throws DeviceError.
std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed, const Tuning& tuning);

}  // namespace vkrnn::cuda
