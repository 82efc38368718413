// Calls with an empty batch, whose plans have no kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn {

// Fills all results of a call with zeros.
inline void clear_results(Device& device, const Plan& plan, std::span<const ResultLocation> results, const Poll& poll) {
    for (std::size_t i = 0; i < results.size(); ++i) {
        const std::vector<std::byte> zeros(plan.buffers.at(plan.results.at(i)).bytes);
        if (results[i].storage && !zeros.empty())
            device.upload(results[i], zeros.data(), zeros.size(), poll);
        else
            std::ranges::copy(zeros, static_cast<std::byte*>(results[i].host));
    }
}

}  // namespace vkrnn
