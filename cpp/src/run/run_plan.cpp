#include "vkrnn/run.h"

namespace vkrnn {

void run_plan(Device& device, const std::shared_ptr<const Plan>& plan, std::span<const InputLocation> inputs,
              std::span<const ResultLocation> results, bool wait, std::string_view label, const Poll& poll) {
    std::vector<std::size_t> existing;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (exists_on(device, inputs[i])) existing.push_back(plan->inputs.at(i).second);
    for (std::size_t i = 0; i < results.size(); ++i)
        if (exists_on(device, results[i])) existing.push_back(plan->results.at(i));
    device.require_room(*plan, plan->peak_bytes(existing), label);
    device.run(plan, inputs, results, wait, label, poll);
}

}  // namespace vkrnn
