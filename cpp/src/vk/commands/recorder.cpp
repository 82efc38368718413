#include "vk/commands/recorder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <variant>

#include "run/buffer_references.h"
#include "run/call_buffers.h"

namespace vkrnn::vk {
namespace {

using Stage = PipelineStageFlagBits2;
using Access = AccessFlagBits2;

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

// Copies the block to `to` with addresses in place of its buffer references.
void relocate(const Block& block, std::span<const Slice> placements, std::byte* to) {
    copy_with_addresses(block, placements.size(), to, [&](std::size_t buffer) { return placements[buffer].address; });
}

}  // namespace

Recorder::Recorder(Pool& pool, Pipelines& pipelines, CommandStream& stream)
    : pool_(pool),
      device_(*pool.timeline().device()),
      pipelines_(pipelines),
      stream_(stream),
      timings_(device_, pool.timeline().family()),
      labels_(device_.context().debug_labels()) {}

Point Recorder::run(const std::shared_ptr<const Plan>& plan, std::span<const Slice> placements,
                    std::span<const std::size_t> full, std::span<const SliceCopy> before,
                    std::span<const SliceCopy> after, std::string_view label, const Poll& poll) {
    to_cache_.reset();
    // An open command buffer contains uploads of this call, which must not be replayed.
    if (before.empty() && after.empty() && !stream_.is_open()) {
        CachedCommands::Key key(plan, placements, full, label);
        if (CachedCommands* found = cache_.find(key)) {
            ++replayed_;
            dispatches_ += found->dispatches;
            return submit(*found);
        }
        if (plan->dispatches() <= stream_.capacity() && cache_.was_seen(key)) {
            to_cache_ = std::make_unique<CachedCommands>(std::move(key), stream_, pool_);
        }
    }
    label_ = label;
    full_ = full;
    poll_ = &poll;
    plan_ = plan.get();
    release_kernels();  // those of a failed call
    for (const Kernel& kernel : plan->kernels) {
        plan_kernels_.push_back(pipelines_.get(kernel));
    }
    std::vector<Slice> with_constants;
    if (to_cache_) {
        with_constants = keep_constants(*plan, placements);
        placements = with_constants;
    }
    if (!stream_.is_open()) {
        stream_.begin(poll, to_cache_ != nullptr);
    }
    open();
    record(*plan, placements, before, after);
    close();
    if (to_cache_) {
        to_cache_->kernels = plan_kernels_;
        to_cache_->dispatches = recorded_;
        to_cache_->commands = stream_.take();
        submit(cache_.add(std::move(to_cache_)));
    } else {
        stream_.submit();
        timings_.submitted();
    }
    release_kernels();
    return stream_.submitted();
}

void Recorder::release_kernels() {
    for (const SharedKernel& kernel : plan_kernels_) {
        pipelines_.used(*kernel, stream_.submitted());
    }
    plan_kernels_.clear();
}

Point Recorder::submit(CachedCommands& cached) {
    submitted_.clear();
    timings_.next();
    timings_.around(*cached.commands.buffer, submitted_);
    cached.point = stream_.submit(submitted_);
    timings_.submitted();
    for (const SharedKernel& kernel : cached.kernels) {
        pipelines_.used(*kernel, cached.point);
    }
    return cached.point;
}

void Recorder::record(const Plan& plan, std::span<const Slice> placements, std::span<const SliceCopy> before,
                      std::span<const SliceCopy> after) {
    const bool cached = to_cache_ != nullptr;  // constants are written already, timestamps are added at submission
    if (!cached) {
        fill_constants(plan, placements);
        copy(before);
        transferred_ = true;  // uploads may have been recorded already
        timings_.next();
        timings_.begin(stream_.commands());
    }
    for (const Step& next : plan.steps) {
        std::visit([&](const auto& s) { step(s, placements); }, next);
    }
    if (!cached) {
        timings_.end(stream_.commands());
    }
    if (!after.empty()) {
        barrier(Stage::eCopy, Access::eTransferRead | Access::eTransferWrite);
        copy(after);
    }
}

void Recorder::open() {
    bound_ = nullptr;
    recorded_ = 0;
    computed_ = transferred_ = left_out_wait_ = false;
    if (labels_) {
        stream_.commands().beginDebugUtilsLabelEXT(DebugUtilsLabelEXT{.pLabelName = label_.c_str()});
    }
}

void Recorder::close() {
    if (labels_) {
        stream_.commands().endDebugUtilsLabelEXT();
    }
}

void Recorder::begin_next_if_full() {
    if (recorded_ >= stream_.capacity()) {
        close();
        stream_.submit();
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

std::vector<Slice> Recorder::keep_constants(const Plan& plan, std::span<const Slice> placements) {
    std::vector<Slice> placed(placements.begin(), placements.end());
    std::uint64_t bytes = 0;
    for (const PlanBuffer& buffer : plan.buffers) {
        bytes += buffer.role == Role::constant ? align(buffer.bytes, kAlignment) : 0;
    }
    if (bytes == 0) {
        return placed;
    }
    to_cache_->constants = pool_.take(bytes, false);
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < placed.size(); ++i) {
        if (plan.buffers[i].role == Role::constant) {
            placed[i] = to_cache_->constants.front().slice.part(at, plan.buffers[i].bytes);
            at += align(plan.buffers[i].bytes, kAlignment);
        }
    }
    stream_.begin(*poll_);
    fill_constants(plan, placed);
    to_cache_->point = stream_.submit();
    return placed;
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
                .groups = dispatch.groups,
                .parameters = std::nullopt};
    if (dispatch.push.bytes.size() > kPushBytes || ready.push_bytes % 4 != 0) {
        throw std::length_error(dispatch.label + ": push constants of " + std::to_string(ready.push_bytes) + " bytes");
    }
    const Profile& profile = device_.profile();
    if (std::max(dispatch.groups[0], dispatch.groups[1]) > profile.max_group_count || dispatch.groups[2] > 65535) {
        throw std::length_error(dispatch.label + ": more workgroups than " + profile.name + " supports");
    }
    relocate(dispatch.push, placements, ready.push.data());
    if (const auto parameters = loop_parameters(*plan_, dispatch)) {
        const Slice& slice = placements[*parameters];
        ready.parameters = DescriptorBufferInfo{slice.buffer, slice.offset, plan_->buffers[*parameters].bytes};
    }
    return ready;
}

void Recorder::step(const Clear& clear, std::span<const Slice> placements) {
    if (is_left_out(full_, clear.fills)) {
        return;
    }
    if (clear.buffer >= placements.size()) {
        throw std::out_of_range("cannot clear a buffer that the plan does not have");
    }
    if (computed_) {
        barrier(Stage::eAllTransfer, Access::eTransferWrite);
    }
    const Slice& slice = placements[clear.buffer];
    if (slice.bytes != 0) {
        // fillBuffer writes whole words. It may write beyond the buffer, into the arena's padding.
        stream_.commands().fillBuffer(slice.buffer, slice.offset, (slice.bytes + 3) / 4 * 4, 0);
        transferred_ = true;
    }
}

void Recorder::step(const Dispatch& dispatch, std::span<const Slice> placements) {
    if (is_left_out(full_, dispatch.fills)) {
        left_out_wait_ = left_out_wait_ || dispatch.after;
        return;
    }
    const Ready one = ready(dispatch, placements);
    begin_next_if_full();
    const Label label(stream_.commands(), labels_, dispatch.label);
    record(one, dispatch.after);
}

void Recorder::step(const Loop& loop, std::span<const Slice> placements) {
    unroll(loop, placements, [&](const Ready& one) {
        begin_next_if_full();
        record(one, true);
    });
}

void Recorder::step(const Branches& branches, std::span<const Slice> placements) {
    std::vector<const Sequence*> found;
    for (const Sequence& branch : branches.branches) {
        found.push_back(&branch);
    }
    together(found, placements);
}

void Recorder::step(const Wavefront& wavefront, std::span<const Slice> placements) {
    const std::size_t lanes = wavefront.lanes.size(), pieces = wavefront.lanes.front().pieces.size();
    std::vector<const Sequence*> before, after;
    for (const Wavefront::Lane& lane : wavefront.lanes) {
        before.push_back(&lane.before);
        after.push_back(&lane.after);
    }
    together(before, placements);
    for (std::size_t diagonal = 0; diagonal + 1 < lanes + pieces; ++diagonal) {
        std::vector<const Sequence*> found;
        for (std::size_t lane = 0; lane < std::min(lanes, diagonal + 1); ++lane) {
            if (diagonal - lane < pieces) {
                found.push_back(&wavefront.lanes[lane].pieces[diagonal - lane]);
            }
        }
        together(found, placements);
    }
    together(after, placements);
}

void Recorder::together(std::span<const Sequence* const> sequences, std::span<const Slice> placements) {
    std::vector<std::vector<Ready>> found;
    std::size_t longest = 0;
    for (const Sequence* const sequence : sequences) {
        std::vector<Ready>& steps = found.emplace_back();
        for (const auto& step : *sequence) {
            if (const auto* loop = std::get_if<Loop>(&step)) {
                unroll(*loop, placements, [&](const Ready& one) { steps.push_back(one); });
            } else if (const auto& dispatch = std::get<Dispatch>(step); !is_left_out(full_, dispatch.fills)) {
                steps.push_back(ready(dispatch, placements));
            }
        }
        longest = std::max(longest, steps.size());
    }
    for (std::size_t i = 0; i < longest; ++i) {
        begin_next_if_full();
        bool after = true;
        for (const std::vector<Ready>& steps : found) {
            if (i < steps.size()) {
                record(steps[i], std::exchange(after, false));
            }
        }
    }
}

template <class Record>
void Recorder::unroll(const Loop& loop, std::span<const Slice> placements, const Record& record) {
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
            record(one);
        }
    }
}

void Recorder::record(const Ready& ready, bool after) {
    if (transferred_ || ((after || left_out_wait_) && computed_)) {
        const auto parameters = transferred_ ? Access::eUniformRead : AccessFlags2{};  // no kernel writes them
        barrier(Stage::eComputeShader, Access::eShaderRead | Access::eShaderWrite | parameters);
        computed_ = transferred_ = false;
    }
    left_out_wait_ = false;
    const raii::CommandBuffer& commands = stream_.commands();
    if (bound_ != ready.pipeline) {
        commands.bindPipeline(PipelineBindPoint::eCompute, ready.pipeline);
        bound_ = ready.pipeline;
    }
    if (ready.push_bytes != 0) {
        commands.pushConstants<std::byte>(pipelines_.layout(), ShaderStageFlagBits::eCompute, 0,
                                          ArrayProxy<const std::byte>(ready.push_bytes, ready.push.data()));
    }
    if (ready.parameters) {
        commands.pushDescriptorSetKHR(PipelineBindPoint::eCompute, pipelines_.layout(), 0,
                                      WriteDescriptorSet{.dstBinding = 0,
                                                         .descriptorCount = 1,
                                                         .descriptorType = DescriptorType::eUniformBuffer,
                                                         .pBufferInfo = &*ready.parameters});
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

}  // namespace vkrnn::vk
