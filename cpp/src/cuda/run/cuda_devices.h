// Lists and opens CUDA devices.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn::cuda {

struct Listed {
    // In the driver's order, with "cuda:0" and so on in their names, and with their numbers in the driver.
    std::vector<std::pair<int, Profile>> usable;
    std::vector<SkippedDevice> skipped;
    std::string problem;  // why the driver cannot be used; empty if it can
};

// Lists the devices. A device is skipped if it is too old, or without NVRTC, which compiles the kernels.
Listed list();

// Opens the device at `index` of list().usable. Throws DeviceError.
std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed, const Tuning& tuning);

}  // namespace vkrnn::cuda
