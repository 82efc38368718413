// The work of a plan's call on the CPU: its dispatches, with addresses, for a team of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
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

// How a team runs the wavefronts of a plan.
struct TeamDivision {
    std::vector<unsigned> parts;  // for each wavefront: into how many parts the team is divided
    bool gains = false;           // whether this is estimated to be faster than one layer after the other
};
TeamDivision divide_team(const Plan& plan, const Target& target, unsigned threads);

class Lanes;

class PlanWork {
public:
    // `most`: the most threads that the call may use. `parts`: see TeamDivision. `at`: returns the memory of a buffer.
    // `is_left_out`: returns whether a dispatch with this Dispatch::fills is not needed.
    PlanWork(const Plan& plan, const Target& target, unsigned most, std::span<const unsigned> parts,
             const std::function<std::byte*(std::size_t)>& at, const std::function<bool(std::size_t)>& is_left_out);
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

}  // namespace vkrnn::cpu
