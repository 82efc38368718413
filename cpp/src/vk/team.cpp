#include "team.h"

#include <cstring>

#include "vkrnn/device.h"

namespace vkrnn::vk {
namespace {

using Stage = PipelineStageFlagBits2;
using Access = AccessFlagBits2;

constexpr const char* kMeetShader = "broadcast_meet";

// Meetings are few and must not depend on what they order.
constexpr MemoryBarrier2 kEverything{
    .srcStageMask = Stage::eAllCommands,
    .srcAccessMask = Access::eMemoryWrite,
    .dstStageMask = Stage::eAllCommands,
    .dstAccessMask = Access::eMemoryRead | Access::eMemoryWrite,
};

}  // namespace

Member::Member(const LogicalDevice& device, Kernels& kernels, Stream& stream, std::optional<std::size_t> helper)
    : device_(&device), kernels_(&kernels), stream_(&stream), helper_(helper) {
    if (device.has_windows()) {
        place_ = allocate(device, Use::device, abi::kMeetBytes);
    }
}

void Member::opened() {
    bound_ = nullptr;
    windows_ = {};
    if (device_->has_windows()) {
        // Kernels need something bound even to windows that they have no use for.
        std::array<Slice, abi::kWindows> anything;
        anything.fill(place_.whole);
        open_windows(anything);
    }
}

void Member::prepare(std::span<const Kernel> kernels) {
    prepared_ = kernels;
    pipelines_.assign(kernels.size(), nullptr);
}

std::vector<std::size_t> Member::missing() const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < prepared_.size(); ++i) {
        if (!kernels_->has(prepared_[i])) {
            found.push_back(i);
        }
    }
    return found;
}

void Member::compile(std::span<const std::size_t> kernels) {
    for (const std::size_t kernel : kernels) {
        pipeline(kernel);
    }
}

void Member::warm_up(std::size_t kernel, const Poll& poll) {
    stream_->begin(poll);
    opened();
    bind(pipeline(kernel));
    stream_->commands().dispatch(0, 1, 1);
    stream_->submit();
    stream_->finish(poll);
}

Pipeline Member::pipeline(std::size_t kernel) {
    Pipeline& found = pipelines_.at(kernel);
    if (!found) {
        found = kernels_->get(prepared_[kernel]);
    }
    return found;
}

void Member::bind(Pipeline pipeline) {
    if (bound_ != pipeline) {
        stream_->commands().bindPipeline(PipelineBindPoint::eCompute, pipeline);
        bound_ = pipeline;
    }
}

void Member::push(std::span<const std::byte> bytes) const {
    if (!bytes.empty()) {
        stream_->commands().pushConstants<std::byte>(
            kernels_->layout(), ShaderStageFlagBits::eCompute, 0,
            ArrayProxy<const std::byte>(static_cast<std::uint32_t>(bytes.size()), bytes.data()));
    }
}

void Member::open_windows(std::span<const Slice> slices) {
    std::array<WriteDescriptorSet, abi::kWindows> writes;
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < slices.size(); ++i) {
        if (!slices[i].buffer) {
            continue;
        }
        const bool mirrored = helper_ && !slices[i].mirrors.empty();
        const Slice seen = mirrored
                               ? slices[i].mirrors[*helper_]->allocation.whole.part(slices[i].offset, slices[i].bytes)
                               : slices[i];
        const std::uint64_t before = seen.offset % device_->window_alignment();
        const DescriptorBufferInfo window{
            .buffer = seen.buffer, .offset = seen.offset - before, .range = before + seen.bytes};
        if (window != windows_[i]) {
            windows_[i] = window;
            writes[count++] = {.dstBinding = i,
                               .descriptorCount = 1,
                               .descriptorType = DescriptorType::eStorageBuffer,
                               .pBufferInfo = &windows_[i]};
        }
    }
    if (count != 0) {
        stream_->commands().pushDescriptorSetKHR(PipelineBindPoint::eCompute, kernels_->layout(), 0,
                                                 ArrayProxy<const WriteDescriptorSet>(count, writes.data()));
    }
}

void Member::dispatch(const Ready& ready, std::array<std::uint32_t, 3> first, std::array<std::uint32_t, 3> groups) {
    bind(pipeline(ready.kernel));
    push(std::span(ready.push).first(ready.push_bytes));
    open_windows(std::span(ready.windows).first(ready.window_count));
    if (first == std::array<std::uint32_t, 3>{}) {
        stream_->commands().dispatch(groups[0], groups[1], groups[2]);
    } else {
        stream_->commands().dispatchBase(first[0], first[1], first[2], groups[0], groups[1], groups[2]);
    }
}

void Member::barrier(const MemoryBarrier2& memory) const {
    stream_->commands().pipelineBarrier2(DependencyInfo{.memoryBarrierCount = 1, .pMemoryBarriers = &memory});
}

void Member::join() {
    std::memset(place_.whole.host, 0, abi::kMeetBytes);
    // Groups along y and z; the kernel sets those along x.
    const std::uint32_t groups[] = {0, 1, 1};
    std::memcpy(place_.whole.host + abi::kMeetGroups, groups, sizeof(groups));
    meet_ = kernels_->get({kMeetShader, {0}});
    wait_ = kernels_->get({kMeetShader, {1}});
}

void Member::meet(std::uint64_t number, std::size_t devices) {
    abi::MeetPush constants{};
    constants.meeting = number;
    constants.own = place_.whole.address;
    constants.devices = static_cast<std::uint32_t>(devices);
    barrier(kEverything);
    bind(meet_);
    push(std::as_bytes(std::span(&constants, 1)));
    stream_->commands().dispatch(1, 1, 1);
    barrier(kEverything);
    bind(wait_);  // with the same constants
    stream_->commands().dispatchIndirect(place_.whole.buffer, place_.whole.offset + abi::kMeetGroups);
    barrier(kEverything);
}

bool members_can_meet() { return !shader_code(kMeetShader).empty(); }

bool Member::alone() const {
    std::uint32_t value = 0;
    if (meet_) {
        std::memcpy(&value, place_.whole.host + abi::kMeetAlone, sizeof(value));
    }
    return value != 0;
}

}  // namespace vkrnn::vk
