// Proof that a device runs right what is written for the way its driver compiles, beyond what Vulkan promises.
#pragma once

#include "vkrnn/device.h"

namespace vkrnn::vk {

// Whether a small product of the broadcast flavour comes out exactly right on the device. VKRNN_FAIL_SELF_TEST=1 says
// no, for tests of what happens then.
bool broadcasts_right(Device& device);

}  // namespace vkrnn::vk
