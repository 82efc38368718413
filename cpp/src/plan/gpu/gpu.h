// Properties of GPUs that strategies plan with. Unknown numbers are replaced by typical ones.
#pragma once

#include "vkrnn/profile.h"
#include "vkrnn/spec.h"

namespace vkrnn {

// Returns the number of a device's multiprocessors.
std::int64_t multiprocessors(const Profile& profile);

// Returns how many of them a call has for its time loop, beside the other lanes of a wavefront.
inline std::int64_t multiprocessors(const Profile& profile, const Spec& spec) {
    return multiprocessors(profile) / spec.lanes;
}

// Returns the registers of a multiprocessor.
std::int64_t registers_of(const Profile& profile);

constexpr std::int64_t kMostRegisters = 255;  // of an invocation on NVIDIA GPUs

// Returns whether the device is an AMD GPU, with any driver.
bool is_amd(const Profile& profile);

}  // namespace vkrnn
