#include "recorder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <variant>

namespace vkrnn::vk {
namespace {

using Stage = PipelineStageFlagBits2;
using Access = AccessFlagBits2;

// A label in the command buffer for as long as the object lives; none where `on` is false.
class Label {
public:
    Label(const raii::CommandBuffer& commands, bool on, const std::string& text) : commands_(on ? &commands : nullptr) {
        if (commands_ != nullptr) {
            commands_->beginDebugUtilsLabelEXT(DebugUtilsLabelEXT{.pLabelName = text.c_str()});
        }
    }
    ~Label() {
        if (commands_ != nullptr) {
            commands_->endDebugUtilsLabelEXT();
        }
    }
    Label(const Label&) = delete;
    Label& operator=(const Label&) = delete;

private:
    const raii::CommandBuffer* commands_;
};

}  // namespace

void resolve(const Block& block, std::span<const Placement> placements, std::byte* to) {
    if (block.places * sizeof(Place) > block.bytes.size()) {
        throw std::out_of_range("a block has more places than bytes");
    }
    std::copy(block.bytes.begin(), block.bytes.end(), to);
    for (std::size_t i = 0; i < block.places; ++i) {
        Place at = 0;
        std::memcpy(&at, block.bytes.data() + i * sizeof(at), sizeof(at));
        if (place_buffer(at) >= placements.size()) {
            throw std::out_of_range("a place in a buffer the plan does not have");
        }
        const std::uint64_t address = placements[place_buffer(at)].device.address + place_offset(at);
        std::memcpy(to + i * sizeof(address), &address, sizeof(address));
    }
}

Recorder::Recorder(const LogicalDevice& device, Kernels& kernels, Stream& stream)
    : device_(device), kernels_(kernels), stream_(stream), labels_(device.context().debug_labels()) {
    if (device.timestamp_period() > 0) {
        queries_ =
            raii::QueryPool(device.handle(), QueryPoolCreateInfo{.queryType = QueryType::eTimestamp, .queryCount = 2});
    }
}

void Recorder::prepare(const Plan& plan) {
    pipelines_.clear();
    for (const Kernel& kernel : plan.kernels) {
        pipelines_.push_back(kernels_.get(kernel));
    }
}

void Recorder::run(const Plan& plan, std::span<const Placement> placements, std::string_view label) {
    label_ = label;
    computed_ = transferred_ = false;
    open();
    if (*queries_) {
        stream_.commands().resetQueryPool(*queries_, 0, 2);
    }
    upload(plan, placements);
    timestamp(0, transferred_ ? Stage::eAllTransfer : Stage::eTopOfPipe);
    for (const Step& next : plan.steps) {
        std::visit([&](const auto& s) { step(s, placements); }, next);
    }
    timestamp(1, Stage::eAllCommands);
    download(plan, placements);
    close();
    stream_.finish();
}

double Recorder::device_seconds() const {
    if (!*queries_) {
        return 0;
    }
    const auto [result, ticks] = queries_.getResults<std::uint64_t>(0, 2, 2 * sizeof(std::uint64_t),
                                                                    sizeof(std::uint64_t), QueryResultFlagBits::e64);
    if (result != Result::eSuccess || ticks[1] < ticks[0]) {
        return 0;
    }
    return static_cast<double>(ticks[1] - ticks[0]) * device_.timestamp_period() * 1e-9;
}

void Recorder::open() {
    stream_.begin();
    bound_ = nullptr;
    recorded_ = 0;
    if (labels_) {
        stream_.commands().beginDebugUtilsLabelEXT(DebugUtilsLabelEXT{.pLabelName = label_.c_str()});
    }
}

void Recorder::close() {
    if (labels_) {
        stream_.commands().endDebugUtilsLabelEXT();
    }
    stream_.submit();
}

void Recorder::upload(const Plan& plan, std::span<const Placement> placements) {
    for (std::size_t i = 0; i < placements.size(); ++i) {
        const Placement& at = placements[i];
        if (at.staging.buffer && plan.buffers[i].role != Role::result && at.device.bytes != 0) {
            const BufferCopy region{
                .srcOffset = at.staging.offset, .dstOffset = at.device.offset, .size = at.device.bytes};
            stream_.commands().copyBuffer(at.staging.buffer, at.device.buffer, region);
            transferred_ = true;
        }
    }
}

void Recorder::download(const Plan& plan, std::span<const Placement> placements) {
    bool copied = false;
    for (std::size_t i = 0; i < placements.size(); ++i) {
        const Placement& at = placements[i];
        if (at.staging.buffer && plan.buffers[i].role == Role::result && at.device.bytes != 0) {
            if (!copied) {
                barrier(Stage::eCopy, Access::eTransferRead);
                copied = true;
            }
            const BufferCopy region{
                .srcOffset = at.device.offset, .dstOffset = at.staging.offset, .size = at.device.bytes};
            stream_.commands().copyBuffer(at.device.buffer, at.staging.buffer, region);
        }
    }
    transferred_ = transferred_ || copied;
    barrier(Stage::eHost, Access::eHostRead);
}

Recorder::Ready Recorder::ready(const Dispatch& dispatch, std::span<const Placement> placements) const {
    Ready ready{.pipeline = pipelines_.at(dispatch.kernel),
                .push = {},
                .push_bytes = static_cast<std::uint32_t>(dispatch.push.bytes.size()),
                .groups = dispatch.groups};
    if (dispatch.push.bytes.size() > kPushBytes || ready.push_bytes % 4 != 0) {
        throw std::length_error(dispatch.label + ": push constants of " + std::to_string(ready.push_bytes) + " bytes");
    }
    const Profile& profile = device_.profile();
    if (std::max(dispatch.groups[0], dispatch.groups[1]) > profile.max_group_count || dispatch.groups[2] > 65535) {
        throw std::length_error(dispatch.label + ": more workgroups than " + profile.name + " takes");
    }
    resolve(dispatch.push, placements, ready.push.data());
    return ready;
}

void Recorder::step(const Clear& clear, std::span<const Placement> placements) {
    if (clear.buffer >= placements.size()) {
        throw std::out_of_range("a buffer to clear that the plan does not have");
    }
    if (computed_) {
        barrier(Stage::eClear, Access::eTransferWrite);
    }
    const Slice& slice = placements[clear.buffer].device;
    if (slice.bytes != 0) {
        // Whole words: what is behind the buffer is the arena's padding.
        stream_.commands().fillBuffer(slice.buffer, slice.offset, (slice.bytes + 3) / 4 * 4, 0);
        transferred_ = true;
    }
}

void Recorder::step(const Dispatch& dispatch, std::span<const Placement> placements) {
    const Ready one = ready(dispatch, placements);
    if (recorded_ >= stream_.capacity()) {
        close();
        open();
    }
    const Label label(stream_.commands(), labels_, dispatch.label);
    record(one, dispatch.after);
}

void Recorder::step(const Loop& loop, std::span<const Placement> placements) {
    body_.clear();
    for (const Dispatch& dispatch : loop.body) {
        body_.push_back(ready(dispatch, placements));
        if (loop.counter + sizeof(std::int32_t) > body_.back().push_bytes) {
            throw std::out_of_range(dispatch.label + ": the loop's counter is outside of the push constants");
        }
    }
    for (std::int64_t i = 0; i < loop.count; ++i) {
        const auto counter = static_cast<std::int32_t>(loop.first + i * loop.increment);
        for (Ready& one : body_) {
            std::memcpy(one.push.data() + loop.counter, &counter, sizeof(counter));
            if (recorded_ >= stream_.capacity()) {
                close();
                open();
            }
            record(one, true);
        }
    }
}

void Recorder::record(const Ready& ready, bool after) {
    if (transferred_ || (after && computed_)) {
        barrier(Stage::eComputeShader, Access::eShaderRead | Access::eShaderWrite);
        computed_ = transferred_ = false;
    }
    const raii::CommandBuffer& commands = stream_.commands();
    if (bound_ != ready.pipeline) {
        commands.bindPipeline(PipelineBindPoint::eCompute, ready.pipeline);
        bound_ = ready.pipeline;
    }
    if (ready.push_bytes != 0) {
        commands.pushConstants<std::byte>(kernels_.layout(), ShaderStageFlagBits::eCompute, 0,
                                          ArrayProxy<const std::byte>(ready.push_bytes, ready.push.data()));
    }
    commands.dispatch(ready.groups[0], ready.groups[1], ready.groups[2]);
    computed_ = true;
    ++recorded_;
    ++dispatches_;
}

// Makes `stages` wait for everything pending. What is pending stays so for other stages; the caller knows.
void Recorder::barrier(PipelineStageFlags2 stages, AccessFlags2 access) {
    MemoryBarrier2 memory{.dstStageMask = stages, .dstAccessMask = access};
    if (computed_) {
        memory.srcStageMask |= Stage::eComputeShader;
        memory.srcAccessMask |= Access::eShaderWrite;
    }
    if (transferred_) {
        memory.srcStageMask |= Stage::eAllTransfer;
        memory.srcAccessMask |= Access::eTransferWrite;
    }
    stream_.commands().pipelineBarrier2(DependencyInfo{.memoryBarrierCount = 1, .pMemoryBarriers = &memory});
}

void Recorder::timestamp(std::uint32_t query, PipelineStageFlagBits2 stage) {
    if (*queries_) {
        stream_.commands().writeTimestamp2(stage, *queries_, query);
    }
}

}  // namespace vkrnn::vk
