// Gets the kernels of plans compiled, for a device and its helpers.
//
// Lavapipe compiles in two parts. Passes over a kernel come with its pipeline, in every process and for each device
// anew; machine code comes with the first dispatch, and is left in a cache on disk where the next one finds it. Without
// that cache machine code takes much the longest, and all processors work at it. With it the passes do: so a plan's
// first call has them done for the device alone, by all processors, and runs without helpers, which follow behind.
#pragma once

#include <future>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "team.h"
#include "vkrnn/device.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

// VKRNN_WAIT_FOR_HELPERS=1 asks for devices whose every call waits for the helpers' kernels, so that tests see helpers
// take part.
bool patience_wanted();

class Compiler {
public:
    // The members must outlive the compiler. `patient`: every call waits for the helpers' kernels.
    Compiler(std::span<Member> members, bool patient);
    // Waits for what is being compiled.
    ~Compiler();
    Compiler(const Compiler&) = delete;
    Compiler& operator=(const Compiler&) = delete;

    // Whether helpers have the kernels of all plans so far.
    bool helpers_ready();

    // Compiles what is missing for the device to record the plan, and says whether all helpers can record theirs.
    // Throws like Kernels::get and Member::warm_up.
    bool compile(const std::shared_ptr<const Plan>& plan, const Poll& poll);

private:
    void compile_missing(const Plan& plan, std::span<const std::size_t> missing, bool for_helpers, const Poll& poll);
    void follow();
    void join(std::size_t member);

    std::span<Member> members_;  // the device, then its helpers
    bool patient_;
    std::vector<std::shared_ptr<const Plan>> pending_;  // plans that helpers may lack kernels of
    std::vector<std::future<void>> followers_;          // by member, of helpers: threads that have them
    std::stop_source stop_;                             // tells those to end
};

}  // namespace vkrnn::vk
