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

constexpr std::uint32_t kTimings =
    64;  // slots of runs that are not cached, more than a stream has command buffers; cached runs' follow

// Labels the commands recorded while the object lives; does nothing if `on` is false.
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

Recorder::Recorder(const LogicalDevice& device, Pipelines& pipelines, Stream& stream)
    : device_(device), pipelines_(pipelines), stream_(stream), labels_(device.context().debug_labels()) {
    if (device.timestamp_period() > 0) {
        constexpr std::uint32_t kQueries = 2 * (kTimings + CommandBufferCache::kCapacity);
        queries_ = raii::QueryPool(device.handle(),
                                   QueryPoolCreateInfo{.queryType = QueryType::eTimestamp, .queryCount = kQueries});
    }
}

Point Recorder::run(const std::shared_ptr<const Plan>& plan, std::span<const Slice> placements,
                    std::span<const SliceCopy> before, std::span<const SliceCopy> after, std::string_view label,
                    const Poll& poll) {
    to_cache_.reset();
    // An open command buffer holds uploads of this call, which must not be replayed.
    if (before.empty() && after.empty() && !stream_.is_open()) {
        CachedCommands::Key key(plan, placements, label);
        if (CachedCommands* found = cache_.find(key)) {
            return replay(*found);
        }
        if (cache_.was_seen(key)) {
            to_cache_ = std::make_unique<CachedCommands>(std::move(key), stream_);
            to_cache_->timing_slot = cache_.make_room();
        }
    }
    label_ = label;
    poll_ = &poll;
    next_timing_slot_ = (next_timing_slot_ + 1) % kTimings;
    timing_slot_ = to_cache_ ? kTimings + to_cache_->timing_slot : next_timing_slot_;
    release_kernels();  // of a call that failed
    for (const Kernel& kernel : plan->kernels) {
        plan_kernels_.push_back(pipelines_.get(kernel));
    }
    if (!stream_.is_open()) {
        stream_.begin(poll, to_cache_ != nullptr);
    }
    open();
    record(*plan, placements, before, after);
    const Point point = close();
    if (to_cache_) {
        to_cache_->kernels = plan_kernels_;
        cache_.add(std::move(to_cache_));
    }
    release_kernels();
    return point;
}

void Recorder::release_kernels() {
    for (const SharedKernel& kernel : plan_kernels_) {
        pipelines_.used(*kernel, stream_.submitted());
    }
    plan_kernels_.clear();
}

Point Recorder::replay(CachedCommands& cached) {
    timing_slot_ = kTimings + cached.timing_slot;
    cached.point = stream_.submit(cached.commands);
    for (const SharedKernel& kernel : cached.kernels) {
        pipelines_.used(*kernel, cached.point);
    }
    dispatches_ += cached.dispatches;
    ++replayed_;
    return cached.point;
}

void Recorder::record(const Plan& plan, std::span<const Slice> placements, std::span<const SliceCopy> before,
                      std::span<const SliceCopy> after) {
    if (*queries_) {
        stream_.commands().resetQueryPool(*queries_, 2 * timing_slot_, 2);
    }
    fill_constants(plan, placements);
    copy(before);
    transferred_ = true;  // uploads may have been recorded before
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

std::optional<double> Recorder::device_seconds(std::uint32_t slot) const noexcept {
    if (!*queries_) {
        return 0;
    }
    try {
        const auto [result, ticks] = queries_.getResults<std::uint64_t>(
            2 * slot, 2, 2 * sizeof(std::uint64_t), sizeof(std::uint64_t), QueryResultFlagBits::e64);
        if (result == Result::eSuccess && ticks[1] >= ticks[0]) {
            return static_cast<double>(ticks[1] - ticks[0]) * device_.timestamp_period() * 1e-9;
        }
    } catch (...) {  // nobody waits for a time: a device that was lost says so to who waits for it
    }
    return std::nullopt;
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
    if (to_cache_) {
        to_cache_->commands = stream_.take();
        to_cache_->point = point;
        to_cache_->dispatches = recorded_;
    }
    return point;
}

void Recorder::split_if_full() {
    if (recorded_ >= stream_.capacity()) {
        to_cache_.reset();
        close();
        stream_.pace(*poll_);
        stream_.begin(*poll_);
        open();
    }
}

void Recorder::fill_constants(const Plan& plan, std::span<const Slice> placements) {
    constexpr std::size_t kUpdate = 65536;  // Vulkan's limit for one vkCmdUpdateBuffer
    for (std::size_t i = 0; i < placements.size(); ++i) {
        const PlanBuffer& buffer = plan.buffers[i];
        if (buffer.role != Role::constant) {
            continue;
        }
        if (buffer.contents.bytes.size() > buffer.bytes) {
            throw std::out_of_range(buffer.name + ": more contents than bytes");
        }
        block_.resize(align(buffer.contents.bytes.size(), 4));
        relocate(buffer.contents, placements, block_.data());
        for (std::size_t at = 0; at < block_.size(); at += kUpdate) {
            const std::size_t bytes = std::min(kUpdate, block_.size() - at);
            stream_.commands().updateBuffer<std::byte>(
                placements[i].buffer, placements[i].offset + at,
                ArrayProxy<const std::byte>(static_cast<std::uint32_t>(bytes), block_.data() + at));
        }
    }
}

void Recorder::copy(std::span<const SliceCopy> copies) {
    for (const SliceCopy& each : copies) {
        stream_.copy(each.from, each.to);
    }
}

Recorder::Ready Recorder::ready(const Dispatch& dispatch, std::span<const Slice> placements) const {
    Ready ready{.pipeline = *plan_kernels_.at(dispatch.kernel)->pipeline,
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
    relocate(dispatch.push, placements, ready.push.data());
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
        // fillBuffer writes whole words; it may write beyond the buffer, where the arena has padding.
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
        commands.pushConstants<std::byte>(pipelines_.layout(), ShaderStageFlagBits::eCompute, 0,
                                          ArrayProxy<const std::byte>(ready.push_bytes, ready.push.data()));
    }
    commands.dispatch(ready.groups[0], ready.groups[1], ready.groups[2]);
    computed_ = true;
    ++recorded_;
    ++dispatches_;
}

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
        stream_.commands().writeTimestamp2(stage, *queries_, 2 * timing_slot_ + which);
    }
}

}  // namespace vkrnn::vk
