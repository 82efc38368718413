#include "vk/run/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "vk/device/error.h"
#include "vk/run/session.h"

namespace vkrnn::vk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPlans = 512;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

const std::string kArray = "[Array] ";

// Asking how much is free costs more than a small call.
constexpr std::uint64_t kMany = 16 << 20;

// Dispatches that should take well under a second: most calls fit into one submission, and an interrupt acts soon.
double first_capacity(const Plan& plan, const Profile& profile) {
    const double flops = profile.type == DeviceType::cpu ? 4e9 : 1e12;
    return flops * static_cast<double>(plan.dispatches()) / std::max(plan.flops, 1.0);
}

void count_submitted(const Work& work, Statistics& statistics) {
    statistics.submissions = work.submissions();
    statistics.dispatches = work.recorder.dispatches();
    statistics.repeated = work.recorder.repeated();
}

}  // namespace

Executor::Executor(Seat seat, StrategyChoice fixed)
    : profile_(seat.candidate.profile),
      fixed_(std::move(fixed)),
      process_(process_id()),
      plans_(kPlans),
      work_(std::make_shared<Work>(std::move(seat))),
      pool_(work_->pools.device),
      results_(work_->pools.results) {}

Executor::~Executor() { close(); }

void Executor::close() {
    if (process_ != process_id()) {
        // The driver's threads stayed behind in the other process: whatever is done to its objects here may hang.
        static_cast<void>(new std::shared_ptr<Work>(work_));  // NOLINT(cppcoreguidelines-owning-memory)
        closed_ = true;
        return;
    }
    const Turn::Held upload_turn = upload_turn_.take({});
    const Turn::Held turn = turn_.take({});
    closed_ = true;
    std::shared_ptr<Work> going;
    {
        const std::lock_guard lock(mutex_);
        if (work_) {
            retire(*work_);
            count_submitted(*work_, statistics_);
        }
        going = std::move(work_);
    }
}

std::shared_ptr<const Plan> Executor::plan(const Spec& spec) { return plans_.get(spec, profile_, fixed_); }

void Executor::check_usable(const std::string& prefix) const {
    if (closed_) {
        throw DeviceError(prefix + "the device is closed; open a new vkrnn.Device");
    }
    if (lost_) {
        throw DeviceError(prefix + "the device was lost in an earlier call; open a new vkrnn.Device");
    }
    if (process_ != process_id()) {
        throw DeviceError(
            prefix +
            "the device was opened in another process and cannot be used after a fork; open a new vkrnn.Device");
    }
}

std::shared_ptr<Work> Executor::work(const std::string& prefix) const {
    const std::lock_guard lock(mutex_);
    check_usable(prefix);
    return work_;
}

std::shared_ptr<Work> Executor::work_to_wait_for(const std::string& prefix) const {
    {
        const std::lock_guard lock(mutex_);
        if (lost_ && !closed_) {
            throw DeviceError(failure_);
        }
    }
    return work(prefix);
}

void Executor::in_turn(Turn& turn, const std::string& prefix, const Poll& poll,
                       const std::function<void(Work&)>& body) {
    check_usable(prefix);
    const Turn::Held held = turn.take(poll);
    check_usable(prefix);  // closed or lost meanwhile
    try {
        body(*work_);
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

// A lost device is blamed on the first call that it was not done with.
void Executor::fail(const std::string& prefix) {
    if (!is_device_lost()) {
        rethrow_translated(prefix);
    }
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) {
        if (work_) {
            retire(*work_);
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
    const auto at_work = work(prefix);
    if (bytes > kMany) {
        const std::uint64_t unused =
            at_work->pools.device->unused() + at_work->arena.held();  // makes way for larger pieces
        const std::uint64_t held = at_work->pools.device->held() + at_work->arena.held();
        const std::uint64_t free = at_work->device->free_memory(held) + unused;
        if (bytes > free) {
            throw MemoryError(prefix + "the call needs " + bytes_text(bytes) + " of device memory, " +
                                  bytes_text(free) + " are free on " + profile_.name,
                              bytes, free);
        }
    }
    for (const PlanBuffer& buffer : plan.buffers) {
        // The granularity of the memory handed out is kept away from the limit.
        if (buffer.bytes > profile_.max_allocation - kAlignment) {
            throw MemoryError(prefix + buffer.name + " needs " + bytes_text(buffer.bytes) + " in one piece, " +
                                  profile_.name + " allocates at most " + bytes_text(profile_.max_allocation) +
                                  " in one piece",
                              buffer.bytes, profile_.max_allocation);
        }
    }
}

std::shared_ptr<Storage> Executor::allocate(std::uint64_t bytes, bool host_writes) {
    const auto at_work = work(kArray);
    Pool& pool = *at_work->pools.device;
    const std::uint64_t free =
        bytes > kMany ? at_work->device->free_memory(pool.held()) + pool.unused() : profile_.max_allocation;
    if (bytes > std::min(free, profile_.max_allocation - kAlignment)) {
        throw MemoryError(kArray + "the array needs " + bytes_text(bytes) + ", " +
                              bytes_text(std::min(free, profile_.max_allocation)) + " can be had on " + profile_.name,
                          bytes, free);
    }
    try {
        const bool idle = host_writes && at_work->device->unified_memory();
        return std::make_shared<PoolStorage>(at_work->pools.device, pool.take(bytes, idle), bytes);
    } catch (...) {
        rethrow_translated(kArray, bytes, free);
    }
}

std::shared_ptr<Storage> Executor::allocate_for_host(std::uint64_t bytes) {
    const auto at_work = work_to_wait_for(kArray);
    if (at_work->device->unified_memory()) {
        return allocate(bytes, false);
    }
    Pool& pool = *at_work->pools.results;
    if (pool.held() - pool.unused() + bytes > at_work->for_host) {
        return nullptr;
    }
    try {
        return std::make_shared<PoolStorage>(at_work->pools.results, pool.take(bytes, false), bytes);
    } catch (...) {
        return nullptr;
    }
}

void Executor::run(const std::shared_ptr<const Plan>& plan, std::span<const InputOperand> inputs,
                   std::span<const ResultOperand> results, bool wait, std::string_view label, const Poll& poll) {
    const auto start = Clock::now();
    const std::string prefix = error_prefix(label);
    const auto at_work = work(prefix);
    Binding binding(at_work->pools, at_work->workers, *plan, wait);
    Point point = 0;
    in_turn(turn_, prefix, poll, [&](Work& now) {
        {
            const std::lock_guard lock(mutex_);
            retire(now);
            ++statistics_.calls;
        }
        const std::uint64_t bytes = binding.temporary_bytes(inputs, results);
        if (bytes > now.arena.held()) {
            require_room(*plan, bytes, label);
        }
        binding.place_scratch(now.arena);
        if (lose_next_.exchange(false)) {
            now.timeline->lose_next();
        }
        now.stream.discard();  // what a call that failed has left
        binding.bind(inputs, results, now.transfer, poll);
        now.stream.after(*now.upload_timeline, binding.arrays_uploaded());
        now.stream.start(first_capacity(*plan, profile_));
        point = now.recorder.run(plan, binding.placements(), binding.before(), binding.after(), label, poll);
        now.transfer.submitted(point);
        binding.submitted(point);
        {
            const std::lock_guard lock(mutex_);
            pending_.push_back({point, prefix, now.recorder.last_timing()});
        }
        now.kernels.save(true);
    });
    if (wait) {
        wait_for(*at_work->timeline, point, prefix, poll);
        binding.fetch();
        if (binding.has_downloads()) {
            in_turn(turn_, prefix, poll, [&](Work& now) { binding.download(now.transfer, poll); });
        }
    }
    const std::lock_guard lock(mutex_);
    statistics_.bytes_uploaded += binding.uploaded();
    statistics_.bytes_imported += binding.imported();
    statistics_.bytes_downloaded += binding.downloaded();
    statistics_.last_host_seconds = seconds_since(start);
}

void Executor::upload(const ResultOperand& to, const void* from, std::uint64_t bytes, const Poll& poll) {
    const auto at_work = work(kArray);
    PoolStorage& storage = at_work->pools.own(*to.storage);
    const Slice slice = storage.slice().part(to.offset, bytes);
    if (slice.host != nullptr) {
        wait_for(*at_work->timeline, storage.used(), kArray, poll);
        at_work->workers.copy(slice.host, from, bytes);
        storage.changed();
    } else {
        Turn& turn = at_work->upload_timeline == at_work->timeline ? turn_ : upload_turn_;
        in_turn(turn, kArray, poll, [&](Work& now) {
            now.upload_stream.begin(poll);
            now.upload_stream.after(*now.timeline, storage.used());
            try {
                now.upload_transfer.upload(slice, from, poll);
            } catch (...) {
                storage.upload(now.upload_timeline, now.upload_timeline->submitted());  // a part may be under way
                throw;
            }
            const Point point = now.upload_stream.submit();
            now.upload_transfer.submitted(point);
            storage.upload(now.upload_timeline, point);
        });
    }
    const std::lock_guard lock(mutex_);
    statistics_.bytes_uploaded += bytes;
}

void Executor::download(void* to, const InputOperand& from, std::uint64_t bytes, const Poll& poll) {
    const auto at_work = work_to_wait_for(kArray);
    const PoolStorage& storage = at_work->pools.own(*from.storage);
    const Slice slice = storage.slice().part(from.offset, bytes);
    wait_for_contents(*at_work, storage, poll);
    if (slice.host != nullptr) {
        at_work->workers.copy(to, slice.host, bytes);
    } else {
        in_turn(turn_, kArray, poll, [&](Work& now) { now.transfer.download(to, slice, poll); });
    }
    const std::lock_guard lock(mutex_);
    statistics_.bytes_downloaded += bytes;
}

void Executor::copy(const ResultOperand& to, const InputOperand& from, std::uint64_t bytes, const Poll& poll) {
    const auto at_work = work_to_wait_for(kArray);
    PoolStorage& target = at_work->pools.own(*to.storage);
    PoolStorage& source = at_work->pools.own(*from.storage);
    submit_copy(source, target, poll, [&](const Stream& stream) {
        stream.copy(source.slice().part(from.offset, bytes), target.slice().part(to.offset, bytes));
    });
    const std::lock_guard lock(mutex_);
    statistics_.bytes_downloaded += target.slice().address == 0 ? bytes : 0;
}

void Executor::clear(const std::shared_ptr<Storage>& to, const Poll& poll) {
    const auto at_work = work(kArray);
    PoolStorage& storage = at_work->pools.own(*to);
    const Slice& slice = storage.slice();
    if (slice.host != nullptr) {
        wait_for(*at_work->timeline, storage.used(), kArray, poll);
        std::memset(slice.host, 0, slice.bytes);
        storage.changed();
        return;
    }
    submit_copy(storage, storage, poll, [&](const Stream& stream) {
        stream.commands().fillBuffer(slice.buffer, slice.offset, align(slice.bytes, 4), 0);
    });
}

// Submits commands of their own that read one storage and write the other.
void Executor::submit_copy(PoolStorage& source, PoolStorage& target, const Poll& poll,
                           const std::function<void(const Stream&)>& record) {
    in_turn(turn_, kArray, poll, [&](Work& now) {
        now.stream.begin(poll);
        now.stream.after(*now.upload_timeline, std::max(source.uploaded(), target.uploaded()));
        record(now.stream);
        const Point point = now.stream.submit();
        source.use(point);
        target.write(point);
    });
}

void Executor::wait_for_contents(const Work& work, const PoolStorage& storage, const Poll& poll) {
    wait_for(*work.timeline, storage.written(), kArray, poll);
    wait_for(*work.upload_timeline, storage.uploaded(), kArray, poll);
}

void Executor::wait(const Storage& storage, const Poll& poll) {
    const auto at_work = work_to_wait_for(kArray);
    wait_for_contents(*at_work, at_work->pools.own(storage), poll);
}

void Executor::synchronize(const Poll& poll) {
    const auto at_work = work_to_wait_for("[Device] ");
    wait_for(*at_work->timeline, at_work->timeline->submitted(), "[Device] ", poll);
    wait_for(*at_work->upload_timeline, at_work->upload_timeline->submitted(), "[Device] ", poll);
}

// Forgets the calls that are done. With the mutex held.
void Executor::retire(const Work& work) const {
    const auto reached = work.timeline->reached();
    std::optional<std::uint32_t> timing;
    while (!pending_.empty() && reached && pending_.front().point <= *reached) {
        timing = pending_.front().timing;
        pending_.pop_front();
    }
    if (timing) {
        statistics_.last_device_seconds =
            work.recorder.device_seconds(*timing).value_or(statistics_.last_device_seconds);
    }
}

Statistics Executor::statistics() const {
    const std::lock_guard lock(mutex_);
    if (work_) {
        retire(*work_);
    }
    Statistics statistics = statistics_;
    statistics.plans = plans_.size();
    if (work_) {
        count_submitted(*work_, statistics);
        statistics.pipelines = work_->kernels.size();
        statistics.bytes_allocated = work_->held();
    }
    for (const auto& pool : {pool_.lock(), results_.lock()}) {
        statistics.bytes_allocated += pool ? pool->held() : 0;
    }
    return statistics;
}

}  // namespace vkrnn::vk
