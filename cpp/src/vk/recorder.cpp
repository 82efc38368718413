#include "recorder.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <iterator>
#include <stdexcept>
#include <utility>
#include <variant>

#include "resolve.h"

namespace vkrnn::vk {
namespace {

using Stage = PipelineStageFlagBits2;
using Access = AccessFlagBits2;

constexpr std::uint32_t kTimings = 64;    // more than there are command buffers; the recordings' come after them
constexpr std::int64_t kFirstAlone = 16;  // steps of a loop that helpers have no part in, of the first submission

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

Recorder::Recorder(const LogicalDevice& device, Kernels& kernels, Stream& stream,
                   std::span<const std::unique_ptr<Helper>> helpers, bool patient)
    : device_(device), stream_(stream), labels_(device.context().debug_labels()) {
    members_.emplace_back(device, kernels, stream);
    for (const auto& helper : helpers) {
        members_.emplace_back(*helper->timeline->device(), helper->kernels, helper->stream, members_.size() - 1);
    }
    if (!helpers.empty()) {
        for (Member& member : members_) {
            member.join();
        }
    }
    compiler_.emplace(members_, patient);
    if (device.timestamp_period() > 0) {
        constexpr std::uint32_t kQueries = 2 * (kTimings + Recordings::kMost);
        queries_ = raii::QueryPool(device.handle(),
                                   QueryPoolCreateInfo{.queryType = QueryType::eTimestamp, .queryCount = kQueries});
    }
}

bool Recorder::left_alone() const {
    return std::any_of(members_.begin(), members_.end(), [](const Member& member) { return member.alone(); });
}

Point Recorder::run(const std::shared_ptr<const Plan>& plan, std::span<const Slice> placements,
                    const std::vector<bool>& filled, std::span<const Copy> before, std::span<const Copy> after,
                    std::string_view label, const Poll& poll) {
    kept_.reset();
    // What is in an open command buffer belongs to this call alone.
    if (before.empty() && after.empty() && !stream_.is_open()) {
        Recording::Key key(plan, placements, filled, compiler_->helpers_ready(), label);
        if (Recording* found = recordings_.find(key)) {
            return repeat(*found);
        }
        if (recordings_.comes_again(key)) {
            kept_ = std::make_unique<Recording>(std::move(key));
            kept_->timing = recordings_.make_room();
        }
    }
    label_ = label;
    filled_ = &filled;
    poll_ = &poll;
    next_timing_ = (next_timing_ + 1) % kTimings;
    timing_ = kept_ ? kTimings + kept_->timing : next_timing_;
    together_ = compiler_->compile(plan, poll);
    if (kept_ && kept_->key.helped != together_) {
        kept_.reset();  // helpers became ready just now
    }
    if (!stream_.is_open()) {
        stream_.begin(poll, kept_ != nullptr);
    }
    open();
    shared_ = false;
    record(*plan, placements, before, after);
    const Point point = close();
    helped_calls_ += shared_ ? 1 : 0;
    if (kept_) {
        recordings_.add(std::move(kept_));
    }
    return point;
}

Point Recorder::repeat(Recording& recording) {
    timing_ = kTimings + recording.timing;
    for (Recording::Part& part : std::span(recording.parts).subspan(1)) {
        part.point = part.stream->submit(part.commands);
    }
    Recording::Part& own = recording.parts.front();
    own.point = own.stream->submit(own.commands);
    dispatches_ += recording.dispatches;
    helped_calls_ += recording.parts.size() > 1 ? 1 : 0;
    ++repeated_;
    return own.point;
}

void Recorder::record(const Plan& plan, std::span<const Slice> placements, std::span<const Copy> before,
                      std::span<const Copy> after) {
    if (*queries_) {
        stream_.commands().resetQueryPool(*queries_, 2 * timing_, 2);
    }
    fill_constants(plan, placements);
    copy(before);
    transferred_ = ahead_ = true;  // by uploads, if by nothing else
    pending_ = lent_ = false;
    timestamp(0, Stage::eAllTransfer);
    for (const Step& next : plan.steps) {
        std::visit([&](const auto& s) { step(s, placements); }, next);
    }
    if (lent_) {
        meet();
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
    members_.front().opened();
    recorded_ = 0;
    helped_ = computed_ = transferred_ = waits_ = false;
    if (labels_) {
        stream_.commands().beginDebugUtilsLabelEXT(DebugUtilsLabelEXT{.pLabelName = label_.c_str()});
    }
}

Point Recorder::close() {
    if (labels_) {
        stream_.commands().endDebugUtilsLabelEXT();
    }
    std::vector<Point> points{0};
    if (helped_) {
        for (const Member& helper : std::span(members_).subspan(1)) {
            points.push_back(helper.stream().submit());
        }
    }
    points.front() = stream_.submit();
    if (kept_) {
        for (std::size_t i = 0; i < points.size(); ++i) {
            Stream& stream = members_[i].stream();
            kept_->parts.push_back({stream.take(), &stream, points[i]});
        }
        kept_->dispatches = recorded_;
    }
    return points.front();
}

// Submits what is recorded and goes on in another command buffer.
void Recorder::split() {
    if (lent_) {
        meet();
    }
    ahead_ = ahead_ || pending_;
    kept_.reset();
    close();
    stream_.pace(*poll_);
    stream_.begin(*poll_);
    open();
}

void Recorder::split_if_full() {
    if (recorded_ >= stream_.capacity()) {
        split();
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
        resolve(buffer.contents, placements, device_.window_alignment(), block_.data());
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

Ready Recorder::ready(const Dispatch& dispatch, std::span<const Slice> placements) const {
    Ready ready{.kernel = dispatch.kernel,
                .push = {},
                .push_bytes = static_cast<std::uint32_t>(dispatch.push.bytes.size()),
                .groups = dispatch.groups,
                .windows = {}};
    ready.shared = members_.size() > 1 && together_ && worth_sharing(dispatch);
    const auto longest = std::max_element(dispatch.groups.begin(), dispatch.groups.end()) - dispatch.groups.begin();
    const bool divides = dispatch.axis && dispatch.groups.at(*dispatch.axis) % members_.size() == 0;
    ready.axis = divides ? *dispatch.axis : static_cast<std::uint32_t>(longest);
    if (dispatch.push.bytes.size() > kPushBytes || ready.push_bytes % 4 != 0) {
        throw std::length_error(dispatch.label + ": push constants of " + std::to_string(ready.push_bytes) + " bytes");
    }
    const Profile& profile = device_.profile();
    if (std::max(dispatch.groups[0], dispatch.groups[1]) > profile.max_group_count || dispatch.groups[2] > 65535) {
        throw std::length_error(dispatch.label + ": more workgroups than " + profile.name + " takes");
    }
    resolve(dispatch.push, placements, device_.window_alignment(), ready.push.data());
    if (dispatch.windows.size() > ready.windows.size()) {
        throw std::length_error(dispatch.label + ": too many windows");
    }
    ready.window_count = static_cast<std::uint32_t>(dispatch.windows.size());
    for (std::size_t i = 0; i < dispatch.windows.size(); ++i) {
        if (dispatch.windows[i] != kNoBuffer) {
            ready.windows[i] = placements[dispatch.windows[i]];  // resolve() has checked those that are used
        }
    }
    return ready;
}

void Recorder::step(const Clear& clear, std::span<const Slice> placements) {
    if (clear.buffer >= placements.size()) {
        throw std::out_of_range("a buffer to clear that the plan does not have");
    }
    if (lent_) {
        meet();
    }
    if (computed_) {
        barrier(Stage::eClear, Access::eTransferWrite);
    }
    const Slice& slice = placements[clear.buffer];
    if (slice.bytes != 0) {
        // Whole words: what is behind the buffer is the arena's padding.
        stream_.commands().fillBuffer(slice.buffer, slice.offset, (slice.bytes + 3) / 4 * 4, 0);
        transferred_ = pending_ = true;
    }
}

void Recorder::step(const Dispatch& dispatch, std::span<const Slice> placements) {
    if (dispatch.fills != kNoBuffer && filled_->at(dispatch.fills)) {
        waits_ = waits_ || dispatch.after;
        return;
    }
    const Ready one = ready(dispatch, placements);
    split_if_full();
    const Label label(stream_.commands(), labels_, dispatch.label);
    record(one, dispatch.after);
}

void Recorder::step(const Loop& loop, std::span<const Slice> placements) {
    body_.clear();
    for (const Dispatch& dispatch : loop.body) {
        body_.push_back(ready(dispatch, placements));
        body_.back().counter = dispatch.counter;
        if (dispatch.counter && *dispatch.counter + sizeof(std::int32_t) > body_.back().push_bytes) {
            throw std::out_of_range(dispatch.label + ": the loop's counter is outside of the push constants");
        }
    }
    // Where helpers have no part in it, a processor is free to record while another computes.
    const bool alone = members_.size() > 1 && loop.count > kFirstAlone && !kept_ &&
                       std::none_of(body_.begin(), body_.end(), [](const Ready& one) { return one.shared; });
    std::int64_t until = 0;
    for (std::int64_t i = 0; i < loop.count; ++i) {
        if (alone && i == until) {
            split();
            until = i == 0 ? kFirstAlone : 2 * i;
        }
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
    const bool shared = ready.shared, waits = transferred_ || ((after || waits_) && computed_);
    waits_ = false;
    ahead_ = ahead_ || (waits && pending_);
    if (shared ? ahead_ || (waits && lent_) : waits && lent_) {
        meet();
    } else if (waits) {
        barrier(Stage::eComputeShader, Access::eShaderRead | Access::eShaderWrite);
        computed_ = transferred_ = false;
    }
    if (shared) {
        share(ready);
        lent_ = true;
    } else {
        members_.front().dispatch(ready, {}, ready.groups);
    }
    computed_ = pending_ = true;
    ++recorded_;
    ++dispatches_;
}

// Each member takes a part of the workgroups.
void Recorder::share(const Ready& ready) {
    open_helpers();
    const std::uint64_t count = ready.groups.at(ready.axis), parts = members_.size();
    for (std::uint64_t i = 0; i < parts; ++i) {
        const auto begin = static_cast<std::uint32_t>(count * i / parts);
        const auto end = static_cast<std::uint32_t>(count * (i + 1) / parts);
        std::array<std::uint32_t, 3> first{}, groups = ready.groups;
        first.at(ready.axis) = begin;
        groups.at(ready.axis) = end - begin;
        if (begin != end) {
            members_[i].dispatch(ready, first, groups);
        }
    }
}

void Recorder::open_helpers() {
    if (helped_) {
        return;
    }
    for (Member& helper : std::span(members_).subspan(1)) {
        helper.stream().begin(*poll_, kept_ != nullptr);
        helper.opened();
    }
    helped_ = shared_ = true;
}

// Whatever any member recorded before is done and seen by all of them when any goes on.
void Recorder::meet() {
    open_helpers();
    for (Member& member : members_) {
        member.meet(members_.front().number(), members_.size());
    }
    computed_ = transferred_ = ahead_ = pending_ = lent_ = false;
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
    members_.front().barrier(memory);
}

void Recorder::timestamp(std::uint32_t which, PipelineStageFlagBits2 stage) {
    if (*queries_) {
        stream_.commands().writeTimestamp2(stage, *queries_, 2 * timing_ + which);
    }
}

}  // namespace vkrnn::vk
