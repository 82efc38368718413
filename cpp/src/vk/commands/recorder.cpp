#include "vk/commands/recorder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <variant>

#include "vk/commands/relocate.h"

namespace vkrnn::vk {
namespace {

using Stage = PipelineStageFlagBits2;
using Access = AccessFlagBits2;

constexpr std::uint32_t kTimings = 64;  // more than there are command buffers; the recordings' come after them

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

Recorder::Recorder(const LogicalDevice& device, Kernels& kernels, Stream& stream)
    : device_(device), kernels_(kernels), stream_(stream), labels_(device.context().debug_labels()) {
    if (device.timestamp_period() > 0) {
        constexpr std::uint32_t kQueries = 2 * (kTimings + Recordings::kMost);
        queries_ = raii::QueryPool(device.handle(),
                                   QueryPoolCreateInfo{.queryType = QueryType::eTimestamp, .queryCount = kQueries});
    }
}

Point Recorder::run(const std::shared_ptr<const Plan>& plan, std::span<const Slice> placements,
                    std::span<const Copy> before, std::span<const Copy> after, std::string_view label,
                    const Poll& poll) {
    kept_.reset();
    // What is in an open command buffer belongs to this call alone.
    if (before.empty() && after.empty() && !stream_.is_open()) {
        Recording::Key key(plan, placements, label);
        if (Recording* found = recordings_.find(key)) {
            return repeat(*found);
        }
        if (recordings_.comes_again(key)) {
            kept_ = std::make_unique<Recording>(std::move(key), stream_);
            kept_->timing = recordings_.make_room();
        }
    }
    label_ = label;
    poll_ = &poll;
    next_timing_ = (next_timing_ + 1) % kTimings;
    timing_ = kept_ ? kTimings + kept_->timing : next_timing_;
    pipelines_.clear();
    for (const Kernel& kernel : plan->kernels) {
        pipelines_.push_back(kernels_.get(kernel));
    }
    if (!stream_.is_open()) {
        stream_.begin(poll, kept_ != nullptr);
    }
    open();
    record(*plan, placements, before, after);
    const Point point = close();
    if (kept_) {
        recordings_.add(std::move(kept_));
    }
    return point;
}

Point Recorder::repeat(Recording& recording) {
    timing_ = kTimings + recording.timing;
    recording.point = stream_.submit(recording.commands);
    dispatches_ += recording.dispatches;
    ++repeated_;
    return recording.point;
}

void Recorder::record(const Plan& plan, std::span<const Slice> placements, std::span<const Copy> before,
                      std::span<const Copy> after) {
    if (*queries_) {
        stream_.commands().resetQueryPool(*queries_, 2 * timing_, 2);
    }
    fill_constants(plan, placements);
    copy(before);
    transferred_ = true;  // by uploads, if by nothing else
    timestamp(0, Stage::eAllTransfer);
    for (const Step& next : plan.steps) {
        std::visit([&](const auto& s) { step(s, placements); }, next);
    }
    timestamp(1, Stage::eAllCommands);
    if (!after.empty()) {
        barrier(Stage::eCopy, Access::eTransferRead | Access::eTransferWrite);
        copy(after);
    }
}

std::optional<double> Recorder::device_seconds(std::uint32_t timing) const {
    if (!*queries_) {
        return 0;
    }
    const auto [result, ticks] = queries_.getResults<std::uint64_t>(2 * timing, 2, 2 * sizeof(std::uint64_t),
                                                                    sizeof(std::uint64_t), QueryResultFlagBits::e64);
    if (result != Result::eSuccess || ticks[1] < ticks[0]) {
        return std::nullopt;
    }
    return static_cast<double>(ticks[1] - ticks[0]) * device_.timestamp_period() * 1e-9;
}

void Recorder::open() {
    bound_ = nullptr;
    recorded_ = 0;
    computed_ = transferred_ = false;
    if (labels_) {
        stream_.commands().beginDebugUtilsLabelEXT(DebugUtilsLabelEXT{.pLabelName = label_.c_str()});
    }
}

Point Recorder::close() {
    if (labels_) {
        stream_.commands().endDebugUtilsLabelEXT();
    }
    const Point point = stream_.submit();
    if (kept_) {
        kept_->commands = stream_.take();
        kept_->point = point;
        kept_->dispatches = recorded_;
    }
    return point;
}

// Submits what is recorded and goes on in another command buffer, where the one at hand has enough.
void Recorder::split_if_full() {
    if (recorded_ >= stream_.capacity()) {
        kept_.reset();
        close();
        stream_.pace(*poll_);
        stream_.begin(*poll_);
        open();
    }
}

// Constants hold addresses of this call's buffers, so they are as new as the call; as a part of the command buffer they
// wait for the calls before to have read theirs.
void Recorder::fill_constants(const Plan& plan, std::span<const Slice> placements) {
    constexpr std::size_t kUpdate = 65536;  // Vulkan's limit
    for (std::size_t i = 0; i < placements.size(); ++i) {
        const PlanBuffer& buffer = plan.buffers[i];
        if (buffer.role != Role::constant) {
            continue;
        }
        if (buffer.contents.bytes.size() > buffer.bytes) {
            throw std::out_of_range(buffer.name + ": more contents than bytes");
        }
        block_.resize(align(buffer.contents.bytes.size(), 4));
        resolve(buffer.contents, placements, block_.data());
        for (std::size_t at = 0; at < block_.size(); at += kUpdate) {
            const std::size_t bytes = std::min(kUpdate, block_.size() - at);
            stream_.commands().updateBuffer<std::byte>(
                placements[i].buffer, placements[i].offset + at,
                ArrayProxy<const std::byte>(static_cast<std::uint32_t>(bytes), block_.data() + at));
        }
    }
}

void Recorder::copy(std::span<const Copy> copies) {
    for (const Copy& each : copies) {
        stream_.copy(each.from, each.to);
    }
}

Recorder::Ready Recorder::ready(const Dispatch& dispatch, std::span<const Slice> placements) const {
    Ready ready{.pipeline = pipelines_.at(dispatch.kernel),
                .push = {},
                .push_bytes = static_cast<std::uint32_t>(dispatch.push.bytes.size()),
                .counter = dispatch.counter,
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

void Recorder::step(const Clear& clear, std::span<const Slice> placements) {
    if (clear.buffer >= placements.size()) {
        throw std::out_of_range("a buffer to clear that the plan does not have");
    }
    if (computed_) {
        barrier(Stage::eClear, Access::eTransferWrite);
    }
    const Slice& slice = placements[clear.buffer];
    if (slice.bytes != 0) {
        // Whole words: what is behind the buffer is the arena's padding.
        stream_.commands().fillBuffer(slice.buffer, slice.offset, (slice.bytes + 3) / 4 * 4, 0);
        transferred_ = true;
    }
}

void Recorder::step(const Dispatch& dispatch, std::span<const Slice> placements) {
    const Ready one = ready(dispatch, placements);
    split_if_full();
    const Label label(stream_.commands(), labels_, dispatch.label);
    record(one, dispatch.after);
}

void Recorder::step(const Loop& loop, std::span<const Slice> placements) {
    body_.clear();
    for (const Dispatch& dispatch : loop.body) {
        body_.push_back(ready(dispatch, placements));
        if (dispatch.counter && *dispatch.counter + sizeof(std::int32_t) > body_.back().push_bytes) {
            throw std::out_of_range(dispatch.label + ": the loop's counter is outside of the push constants");
        }
    }
    for (std::int64_t i = 0; i < loop.count; ++i) {
        const auto counter = static_cast<std::int32_t>(loop.first + i * loop.increment);
        for (Ready& one : body_) {
            if (one.counter) {
                std::memcpy(one.push.data() + *one.counter, &counter, sizeof(counter));
            }
            split_if_full();
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

void Recorder::timestamp(std::uint32_t which, PipelineStageFlagBits2 stage) {
    if (*queries_) {
        stream_.commands().writeTimestamp2(stage, *queries_, 2 * timing_ + which);
    }
}

}  // namespace vkrnn::vk
