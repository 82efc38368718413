#include "cuda/run/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/abandon.h"
#include "base/messages.h"
#include "base/seconds.h"
#include "cuda/run/current_stream.h"
#include "cuda/run/execution.h"
#include "run/empty_call.h"
#include "run/poll.h"
#include "vkrnn/error.h"
#include "vkrnn/poll_interval.h"

namespace vkrnn::cuda {
namespace {

constexpr std::size_t kMostPending = 64;  // calls whose times are kept until they are asked for
const std::string kDevice = "[Device] ";

bool is_capturing(Stream stream) {
    int status = 0;
    return stream != Stream::legacy && driver().StreamIsCapturing(stream, &status) == kSuccess && status != 0;
}

}  // namespace

CudaDevice::CudaDevice(int ordinal, Profile profile, StrategyChoice fixed, Tuning tuning)
    : ordinal_(ordinal),
      profile_(std::move(profile)),
      fixed_(std::move(fixed)),
      tuning_(std::move(tuning)),
      process_(system::process_id()) {
    try {
        DeviceNumber device = 0;
        check(driver().DeviceGet(&device, ordinal));
        session_ = std::make_shared<Session>(device, attribute_of(device, DeviceAttribute::major),
                                             attribute_of(device, DeviceAttribute::minor), profile_.name);
        memory_ = session_->memory;
    } catch (...) {
        rethrow_translated("opening the device: ");
    }
}

CudaDevice::~CudaDevice() { close(); }

void CudaDevice::close() {
    closed_ = true;
    if (process_ != system::process_id()) {
        abandon(std::move(session_));
        return;
    }
    std::shared_ptr<Session> closing;
    {
        const std::lock_guard lock(state_mutex_);
        closing = std::move(session_);
    }
    if (!closing) return;
    try {
        const Current current(closing->memory->context());
        driver().CtxSynchronize();  // calls that still run keep the session
        const std::size_t kernels = closing->modules->size();
        const std::lock_guard lock(state_mutex_);
        statistics_.pipelines = kernels;
        statistics_.failed_waits = closing->failed_waits.look();
        retire();
        for (const Pending& each : pending_) events_.insert(events_.end(), {each.start, each.end});
        pending_.clear();
        for (const Event each : events_) driver().EventDestroy(each);
        events_.clear();
    } catch (const DriverError&) {  // the driver has already shut down
    }
}

std::shared_ptr<const Plan> CudaDevice::plan(const Spec& spec) { return plans_.get(spec, profile_, fixed_, tuning_); }

std::shared_ptr<CudaDevice::Session> CudaDevice::usable_session(const std::string& prefix) const {
    const std::lock_guard lock(state_mutex_);
    if (closed_) throw DeviceError(prefix + "the device is closed; open a new vkrnn.Device");
    if (lost_) throw DeviceError(failure_);
    if (process_ != system::process_id())
        throw DeviceError(prefix +
                          "the device was opened in another process and cannot be used after a fork; CUDA works in "
                          "processes that are started anew");
    return session_;
}

bool CudaDevice::is_usable() const {
    try {
        static_cast<void>(usable_session({}));
        return true;
    } catch (const DeviceError&) {
        return false;
    }
}

void CudaDevice::in_context(const std::string& prefix, const std::function<void(Session&, Stream)>& body) {
    const auto session = usable_session(prefix);
    try {
        const Current current(session->memory->context());
        body(*session, current_stream);
    } catch (...) {
        fail(prefix);
    }
}

void CudaDevice::fail(const std::string& prefix) {
    try {
        throw;
    } catch (const Forked&) {
        throw DeviceError(prefix + "the device cannot be used after a fork");
    } catch (const DriverError& error) {
        if (!error.loses_device()) rethrow_translated(prefix);
        const std::lock_guard lock(state_mutex_);
        if (!lost_) {
            try {
                rethrow_translated(pending_.empty() ? prefix : pending_.front().prefix);
            } catch (const Error& translated) {
                failure_ = translated.what();
            }
            lost_ = true;
        }
        throw DeviceError(failure_);
    } catch (...) {
        rethrow_translated(prefix);
    }
}

// The driver is not asked how much memory is free, which takes as long as ten small calls. If there is too little, an
// allocation fails without harm.
void CudaDevice::require_room(const Plan& /*plan*/, std::uint64_t bytes, std::string_view label) {
    if (bytes <= profile_.memory_bytes) return;
    const std::string prefix = error_prefix(label);
    in_context(prefix, [&](Session& session, Stream) { throw_no_room(prefix + "the call needs ", bytes, session); });
}

void CudaDevice::throw_no_room(const std::string& needs, std::uint64_t bytes, const Session& session) const {
    const std::uint64_t free = session.memory->available();
    throw MemoryError(
        needs + bytes_text(bytes) + " of device memory, " + bytes_text(free) + " are free on " + profile_.name, bytes,
        free);
}

Event CudaDevice::event() const {
    if (events_.empty()) {
        Event made{};
        check(driver().EventCreate(&made, EventFlags::timed));
        return made;
    }
    const Event found = events_.back();
    events_.pop_back();
    return found;
}

void CudaDevice::run(const std::shared_ptr<const Plan>& plan, std::span<const InputLocation> inputs,
                     std::span<const ResultLocation> results, bool wait, std::string_view label, const Poll& poll) {
    const auto start = Clock::now();
    const std::string prefix = error_prefix(label);
    if (plan->kernels.empty()) {
        static_cast<void>(usable_session(prefix));
        clear_results(*this, *plan, results, poll);
        const std::lock_guard lock(state_mutex_);
        ++statistics_.calls;
        statistics_.last_host_seconds = seconds_since(start);
        return;
    }
    in_context(prefix, [&](Session& session, Stream stream) {
        if (lose_next_.exchange(false))
            throw DriverError{kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED (simulated)"};
        const bool capturing = is_capturing(stream);
        if (!capturing) session.memory->release_due();
        const std::shared_ptr<const Plan> used = session.failed_waits.choose(plan);
        const std::vector<LoadedKernel> kernels = session.modules->get(used->kernels, prefix, poll);
        Execution execution(session.memory, *used, stream, current_allocator, *session.side_streams);
        // Calls that are captured in a graph, and those with memory of another library, are not timed.
        Pending pending{{}, {}, prefix};
        try {
            execution.bind(inputs, results);
            if (!capturing && current_allocator == nullptr) {
                const std::lock_guard lock(state_mutex_);
                retire();
                pending.start = event();
                pending.end = event();
            }
            if (pending.start != Event{}) check(driver().EventRecord(pending.start, stream));
            execution.launch(kernels, *session.products, poll);
            if (pending.end != Event{}) check(driver().EventRecord(pending.end, stream));
            if (execution.has_host_results()) wait_for(stream, poll);  // the copies would wait without asking the poll
            execution.copy_results();
            execution.finish();
        } catch (const DriverError& error) {
            execution.give_up();
            give_back(pending);
            if (error.code != kOutOfMemory) throw;
            const std::uint64_t bytes = std::max<std::uint64_t>(execution.temporary_bytes(), 1);
            if (current_allocator != nullptr)
                throw MemoryError(prefix + "the call needs " + bytes_text(bytes) +
                                      " of device memory, which its caller's pool does not have",
                                  bytes, 0);
            throw_no_room(prefix + "the call needs ", bytes, session);
        } catch (...) {
            execution.give_up();
            give_back(pending);
            throw;
        }
        if (pending.start != Event{}) {
            const std::lock_guard lock(state_mutex_);
            pending_.push_back(std::move(pending));
        }
        if (wait || execution.uploaded() != 0) wait_for(stream, poll);  // the caller may change what is still copied
        const std::lock_guard lock(state_mutex_);
        ++statistics_.calls;
        ++statistics_.submissions;
        statistics_.dispatches += execution.launched();
        statistics_.bytes_uploaded += execution.uploaded();
        statistics_.bytes_downloaded += execution.downloaded();
        statistics_.last_host_seconds = seconds_since(start);
    });
}

void CudaDevice::give_back(const Pending& pending) {
    if (process_ != system::process_id()) return;
    const std::lock_guard lock(state_mutex_);
    for (const Event each : {pending.start, pending.end})
        if (each != Event{}) events_.push_back(each);
}

void CudaDevice::wait_for(Stream stream, const Poll& poll) {
    constexpr auto kSpin = std::chrono::microseconds(200), kPause = std::chrono::microseconds(50);
    Event done{};
    const Functions& cu = driver();
    check(cu.EventCreate(&done, EventFlags::untimed));
    const auto destroy = [](const Event* event) {
        if (const Functions* const usable = driver_to_clean_up()) usable->EventDestroy(*event);
    };
    const std::unique_ptr<Event, decltype(destroy)> owner(&done, destroy);
    check(cu.EventRecord(done, stream));
    const auto start = Clock::now();
    auto asked = start;
    Result result = kNotReady;
    while ((result = cu.EventQuery(done)) == kNotReady) {
        const auto now = Clock::now();
        if (now - asked >= poll_interval.load()) {
            ask(poll);
            asked = now;
        }
        if (now - start > kSpin) std::this_thread::sleep_for(kPause);
    }
    check(result);
}

void CudaDevice::synchronize(const Poll& poll) {
    in_context(kDevice, [&](Session& session, Stream) {
        wait_for(Stream::legacy, poll);
        check(driver().CtxSynchronize());  // streams that are independent of the legacy one
        session.memory->release_due();
    });
}

void CudaDevice::retire() const {
    const Functions& cu = driver();
    while (!pending_.empty() && (pending_.size() > kMostPending || cu.EventQuery(pending_.front().end) != kNotReady)) {
        const Pending& first = pending_.front();
        float milliseconds = 0;
        if (cu.EventElapsedTime(&milliseconds, first.start, first.end) == kSuccess)
            statistics_.last_device_seconds = milliseconds / 1000.0;
        events_.insert(events_.end(), {first.start, first.end});
        pending_.pop_front();
    }
}

Statistics CudaDevice::statistics() const {
    const auto memory = memory_.lock();
    std::shared_ptr<Session> session;
    Statistics statistics;
    try {
        const bool usable = process_ == system::process_id() && memory;
        const auto current = usable ? std::make_unique<Current>(memory->context()) : nullptr;
        {
            const std::lock_guard lock(state_mutex_);
            session = session_;
            if (usable && session) retire();
            statistics = statistics_;
        }
        if (usable && session) statistics.failed_waits = session->failed_waits.look();
        if (usable) statistics.bytes_allocated = memory->held();
    } catch (const DriverError&) {  // the device was lost
    }
    if (session) statistics.pipelines = session->modules->size();
    statistics.plans = plans_.size();
    return statistics;
}

std::string CudaDevice::compiler_key() const { return usable_session(kDevice)->modules->compiler().key(); }

}  // namespace vkrnn::cuda
