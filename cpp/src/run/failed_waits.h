// What a GPU does if it does not run all workgroups at the same time that wait for each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "vkrnn/plan.h"

namespace vkrnn {

// A workgroup gives up a wait that takes too long, and the time loop runs again without waits. This is slow, so a
// device on which it happens repeatedly runs layers one after the other instead of wavefronts, whose loops share the
// device. Thread-safe.
class FailedWaits {
public:
    // `word` is in memory that the host and the kernels share: see Role::failed_waits. `device` begins messages.
    FailedWaits(volatile std::uint32_t& word, std::string device) : word_(word), device_(std::move(device)) {
        word_ = 0;
    }

    // Returns how often calls were found to have run a time loop again. Several such calls may be found at once.
    std::uint64_t look();

    // Returns the plan with which to run a call.
    std::shared_ptr<const Plan> choose(const std::shared_ptr<const Plan>& plan);

private:
    volatile std::uint32_t& word_;
    std::string device_;
    std::atomic<std::uint64_t> found_ = 0;
};

}  // namespace vkrnn
