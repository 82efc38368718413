// The work of a plan's call on the CPU: its dispatches, with addresses, for a team of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "cpu/work/kernel.h"
#include "vkrnn/device.h"
#include "vkrnn/plan.h"

namespace vkrnn::cpu {

// A dispatch whose buffer references have been replaced by addresses.
struct Task {
    const NamedKernel* kernel = nullptr;
    const std::uint32_t* constants = nullptr;
    std::vector<std::uint64_t> work{};  // a struct of cpu_work.h

    [[nodiscard]] const std::byte* bytes_of_work() const { return reinterpret_cast<const std::byte*>(work.data()); }
};

class Lanes;

class PlanWork {
public:
    // `most`: the most threads that the call may use. `at`: returns the memory of a buffer. `is_left_out`: returns
    // whether a dispatch with this Dispatch::fills is not needed.
    PlanWork(const Plan& plan, const Target& target, unsigned most, const std::function<std::byte*(std::size_t)>& at,
             const std::function<bool(std::size_t)>& is_left_out);
    ~PlanWork();
    PlanWork(const PlanWork&) = delete;
    PlanWork& operator=(const PlanWork&) = delete;

    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }

    // Runs everything once. Throws what run_on_team throws.
    void run(const Poll& poll);

private:
    std::vector<std::variant<Task, std::unique_ptr<Lanes>>> steps_;
    unsigned threads_ = 1;
    std::uint64_t dispatches_ = 0;
};

// Returns whether a plan's wavefronts are estimated to be faster on some threads than one layer after the other.
bool wavefronts_gain(const Plan& plan, const Target& target, unsigned threads);

}  // namespace vkrnn::cpu
