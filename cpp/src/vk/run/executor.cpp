#include "vk/run/executor.h"

#include <algorithm>
#include <optional>

#include "base/abandon.h"
#include "base/seconds.h"
#include "run/empty_call.h"
#include "vk/device/vulkan_error.h"
#include "vk/run/session.h"

namespace vkrnn::vk {
namespace {

[[noreturn]] void throw_forked(const std::string& prefix) {
    throw DeviceError(
        prefix + "the device was opened in another process and cannot be used after a fork; open a new vkrnn.Device");
}

const std::string kDevice = "[Device] ";

// Estimates how many dispatches run in a second, so that most calls fit into one submission. On a CPU device that the
// caller waits for, a tenth of that: the estimate is better there, and an interrupt takes effect sooner.
double first_capacity(const Plan& plan, const Profile& profile, bool wait) {
    const bool cpu = profile.type == DeviceType::cpu;
    const double each = plan.flops / std::max(static_cast<double>(plan.dispatches()), 1.0);
    const double seconds = cpu ? 5e-5 + each / 4e9 : each / 1e12;
    return (cpu && wait ? 0.1 : 1.0) / std::max(seconds, 1e-12);
}

void count_submitted(const Session& session, Statistics& statistics) {
    statistics.submissions = session.submissions();
    statistics.dispatches = session.recorder.dispatches();
    statistics.replayed = session.recorder.replayed();
}

}  // namespace

Executor::Executor(SelectedDevice selected, StrategyChoice fixed, Tuning tuning)
    : profile_(selected.candidate.profile),
      fixed_(std::move(fixed)),
      tuning_(std::move(tuning)),
      process_(system::process_id()),
      session_(std::make_shared<Session>(std::move(selected))),
      pool_(session_->pools.device),
      results_(session_->pools.results) {}

Executor::~Executor() { close(); }

void Executor::close() {
    if (process_ != system::process_id()) {
        // After a fork, the driver's threads exist only in the parent. Destroying its objects here may hang, so they
        // leak.
        abandon(session_);
        closed_ = true;
        return;
    }
    const InterruptibleMutex::Lock upload_lock = upload_mutex_.lock(kDevice, {});
    const InterruptibleMutex::Lock submit_lock = submit_mutex_.lock(kDevice, {});
    closed_ = true;
    std::shared_ptr<Session> closing;
    {
        const std::lock_guard lock(state_mutex_);
        if (session_) {
            retire(*session_);
            count_submitted(*session_, statistics_);
            statistics_.failed_waits = session_->failed_waits.look();
        }
        closing = std::move(session_);
    }
}

std::shared_ptr<const Plan> Executor::plan(const Spec& spec) { return plans_.get(spec, profile_, fixed_, tuning_); }

void Executor::check_usable(const std::string& prefix) const {
    if (closed_) {
        throw DeviceError(prefix + "the device is closed; open a new vkrnn.Device");
    }
    if (lost_) {
        throw DeviceError(prefix + "the device was lost in an earlier call; open a new vkrnn.Device");
    }
    if (process_ != system::process_id()) throw_forked(prefix);
}

std::shared_ptr<Session> Executor::usable_session(const std::string& prefix) const {
    check_usable(prefix);
    const std::lock_guard lock(state_mutex_);
    check_usable(prefix);  // it may have been closed or lost meanwhile
    return session_;
}

std::shared_ptr<Session> Executor::session_to_wait_for(const std::string& prefix) const {
    if (process_ == system::process_id()) {
        const std::lock_guard lock(state_mutex_);
        if (lost_ && !closed_) {
            throw DeviceError(failure_);
        }
    }
    return usable_session(prefix);
}

void Executor::with_lock(InterruptibleMutex& mutex, const std::string& prefix, const Poll& poll,
                         const std::function<void(Session&)>& body) {
    check_usable(prefix);
    const InterruptibleMutex::Lock lock = [&] {
        try {
            return mutex.lock(prefix, poll);
        } catch (const Forked&) {
            fail(prefix);
        }
    }();
    check_usable(prefix);  // it may have been closed or lost meanwhile
    try {
        body(*session_);
    } catch (...) {
        fail(prefix);
    }
}

void Executor::wait_for(const Timeline& timeline, Point point, const std::string& prefix, const Poll& poll) {
    try {
        timeline.wait(point, poll);
    } catch (...) {
        fail(prefix);
    }
}

void Executor::fail(const std::string& prefix) {
    if (process_ != system::process_id()) {
        try {
            throw;
        } catch (const Forked&) {
            throw_forked(prefix);
        }
    }
    if (!is_device_lost()) {
        rethrow_translated(prefix);
    }
    const std::lock_guard lock(state_mutex_);
    if (failure_.empty()) {
        if (session_) {
            retire(*session_);
        }
        try {
            rethrow_translated(pending_.empty() ? prefix : pending_.front().prefix);
        } catch (const Error& error) {
            failure_ = error.what();
        }
        lost_ = true;
    }
    throw DeviceError(failure_);
}

void Executor::require_room(const Plan& plan, std::uint64_t bytes, std::string_view label) {
    const std::string prefix = error_prefix(label);
    const auto session = usable_session(prefix);
    if (bytes > kChecked) {
        const std::uint64_t unused =
            session->pools.device->unused() + session->arena.held();  // would be released for larger pieces
        const std::uint64_t held = session->pools.device->held() + session->arena.held();
        const std::uint64_t free = session->device->free_memory(held) + unused;
        if (bytes > free) {
            throw MemoryError(prefix + "the call needs " + bytes_text(bytes) + " of device memory, " +
                                  bytes_text(free) + " are free on " + profile_.name,
                              bytes, free);
        }
    }
    for (const PlanBuffer& buffer : plan.buffers) {
        // Keeps the limit clear of the alignment of pieces of memory.
        if (buffer.bytes > profile_.max_allocation - kAlignment) {
            throw MemoryError(prefix + buffer.name + " needs " + bytes_text(buffer.bytes) + " in one piece, " +
                                  profile_.name + " allocates at most " + bytes_text(profile_.max_allocation) +
                                  " in one piece",
                              buffer.bytes, profile_.max_allocation);
        }
    }
}

void Executor::run(const std::shared_ptr<const Plan>& plan, std::span<const InputLocation> inputs,
                   std::span<const ResultLocation> results, bool wait, std::string_view label, const Poll& poll) {
    const auto start = Clock::now();
    const std::string prefix = error_prefix(label);
    const auto session = usable_session(prefix);
    const std::shared_ptr<const Plan> used = session->failed_waits.choose(plan);
    if (used->kernels.empty()) {
        clear_results(*this, *used, results, poll);
        const std::lock_guard lock(state_mutex_);
        ++statistics_.calls;
        statistics_.last_host_seconds = seconds_since(start);
        return;
    }
    Binding binding(session->pools, session->workers, *used, wait);
    Point point = 0;
    with_lock(submit_mutex_, prefix, poll, [&](Session& locked) {
        {
            const std::lock_guard lock(state_mutex_);
            retire(locked);
            ++statistics_.calls;
        }
        binding.find_prepacked(inputs, results);
        const std::uint64_t bytes = binding.temporary_bytes(inputs, results);
        if (bytes > locked.arena.held()) {
            require_room(*used, bytes, label);
        }
        binding.place_scratch(locked.arena);
        if (lose_next_.exchange(false)) {
            locked.timeline->lose_next();
        }
        locked.stream.discard();  // drops commands of a failed call
        locked.transfer.discard();
        binding.bind(inputs, results, locked.transfer, poll);
        locked.stream.after(*locked.upload_timeline, binding.arrays_uploaded());
        locked.stream.start(first_capacity(*used, profile_, wait), wait);
        point = locked.recorder.run(used, binding.placements(), binding.full(), binding.before(), binding.after(),
                                    label, poll);
        locked.transfer.submitted(point);
        binding.submitted(point);
        {
            const std::lock_guard lock(state_mutex_);
            pending_.push_back({point, prefix, locked.recorder.last_timing_slot()});
        }
        locked.pipelines.save(true);
    });
    if (wait) {
        wait_for(*session->timeline, point, prefix, poll);
        binding.fetch();
        if (binding.has_downloads()) {
            with_lock(submit_mutex_, prefix, poll, [&](Session& locked) { binding.download(locked.transfer, poll); });
        }
    }
    const std::lock_guard lock(state_mutex_);
    statistics_.bytes_uploaded += binding.uploaded();
    statistics_.bytes_imported += binding.imported();
    statistics_.bytes_downloaded += binding.downloaded();
    statistics_.last_host_seconds = seconds_since(start);
}

void Executor::synchronize(const Poll& poll) {
    const auto session = session_to_wait_for(kDevice);
    wait_for(*session->timeline, session->timeline->submitted(), kDevice, poll);
    wait_for(*session->upload_timeline, session->upload_timeline->submitted(), kDevice, poll);
}

void Executor::retire(const Session& session) const {
    const auto reached = session.timeline->reached();
    std::optional<std::uint32_t> timing_slot;
    while (!pending_.empty() && reached && pending_.front().point <= *reached) {
        timing_slot = pending_.front().timing_slot;
        pending_.pop_front();
    }
    if (timing_slot) {
        statistics_.last_device_seconds =
            session.recorder.device_seconds(*timing_slot).value_or(statistics_.last_device_seconds);
    }
}

Statistics Executor::statistics() const {
    std::unique_lock lock(state_mutex_, std::defer_lock);
    if (process_ == system::process_id()) {
        lock.lock();
        if (session_) {
            retire(*session_);
        }
    }
    Statistics statistics = statistics_;
    statistics.plans = plans_.size();
    if (session_) {
        count_submitted(*session_, statistics);
    }
    if (!lock) {
        return statistics;
    }
    if (session_) {
        statistics.pipelines = session_->pipelines.size();
        statistics.bytes_allocated = session_->held();
        statistics.failed_waits = session_->failed_waits.look();
    }
    for (const auto& pool : {pool_.lock(), results_.lock()}) {
        statistics.bytes_allocated += pool ? pool->held() : 0;
    }
    return statistics;
}

}  // namespace vkrnn::vk
