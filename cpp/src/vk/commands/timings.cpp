#include "vk/commands/timings.h"

#include <cstddef>

#include "vk/device/logical_device.h"

namespace vkrnn::vk {

Timings::Timings(const LogicalDevice& device, std::uint32_t family) : device_(device) {
    if (device.timestamp_period() == 0) {
        return;
    }
    const raii::Device& handle = device.handle();
    queries_ =
        raii::QueryPool(handle, QueryPoolCreateInfo{.queryType = QueryType::eTimestamp, .queryCount = 2 * kSlots});
    pool_ = raii::CommandPool(handle, CommandPoolCreateInfo{.queueFamilyIndex = family});
    recorded_ = raii::CommandBuffers(handle, CommandBufferAllocateInfo{.commandPool = *pool_,
                                                                       .level = CommandBufferLevel::ePrimary,
                                                                       .commandBufferCount = 2 * kSlots + 2});
    const CommandBufferBeginInfo info{.flags = CommandBufferUsageFlagBits::eSimultaneousUse};
    for (std::uint32_t i = 0; i < recorded_.size(); ++i) {
        recorded_[i].begin(info);
        if (i < 2 * kSlots) {
            write(recorded_[i], i);
        } else {
            reset(recorded_[i], i - 2 * kSlots);
        }
        recorded_[i].end();
    }
}

void Timings::next() {
    slot_ = (slot_ + 1) % kSlots;
    must_reset_ = must_reset_ || slot_ % kHalf == 0;
}

void Timings::reset(const raii::CommandBuffer& commands, std::uint32_t half) const {
    if (*queries_) {
        commands.resetQueryPool(*queries_, half * 2 * kHalf, 2 * kHalf);
    }
}

void Timings::begin(const raii::CommandBuffer& commands) const {
    if (must_reset_) {
        reset(commands, slot_ / kHalf);
    }
    write(commands, 2 * slot_);
}

void Timings::end(const raii::CommandBuffer& commands) const { write(commands, 2 * slot_ + 1); }

void Timings::write(const raii::CommandBuffer& commands, std::uint32_t which) const {
    if (*queries_) {
        commands.writeTimestamp2(PipelineStageFlagBits2::eAllCommands, *queries_, which);
    }
}

void Timings::around(CommandBuffer commands, std::vector<CommandBufferSubmitInfo>& submitted) const {
    const auto add = [&](CommandBuffer each) { submitted.push_back({.commandBuffer = each}); };
    if (!*queries_) {
        return add(commands);
    }
    if (must_reset_) {
        add(*recorded_[2 * kSlots + slot_ / kHalf]);
    }
    const std::size_t pair = std::size_t{2} * slot_;
    add(*recorded_[pair]);
    add(commands);
    add(*recorded_[pair + 1]);
}

std::optional<double> Timings::seconds(std::uint32_t slot) const noexcept {
    if (!*queries_) {
        return 0;
    }
    try {
        const auto [result, ticks] = queries_.getResults<std::uint64_t>(
            2 * slot, 2, 2 * sizeof(std::uint64_t), sizeof(std::uint64_t), QueryResultFlagBits::e64);
        if (result == Result::eSuccess && ticks[1] >= ticks[0]) {
            return static_cast<double>(ticks[1] - ticks[0]) * device_.timestamp_period() * 1e-9;
        }
    } catch (...) {  // a lost device raises at the next wait for a result
    }
    return std::nullopt;
}

}  // namespace vkrnn::vk
