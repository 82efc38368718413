#include "executor.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "error.h"
#include "kernel.h"
#include "memory.h"
#include "recorder.h"
#include "self_test.h"
#include "stream.h"

namespace vkrnn::vk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPlans = 512;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// VKRNN_STAGING=1 goes through staging memory also where the host can map the device's: so that the way discrete
// devices take can be tested on any.
bool staging_wanted() {
    const char* value = std::getenv("VKRNN_STAGING");
    return value != nullptr && std::strcmp(value, "1") == 0;
}

// An empty array may well be at null, which memcpy does not take.
void copy(void* to, const void* from, std::uint64_t bytes) {
    if (bytes != 0) {
        std::memcpy(to, from, bytes);
    }
}

// Dispatches that should take well under a second: most calls fit into one submission, and an interrupt acts soon.
double first_capacity(const Plan& plan, const Profile& profile) {
    const double flops = profile.type == DeviceType::cpu ? 4e9 : 1e12;
    return flops * static_cast<double>(plan.dispatches()) / std::max(plan.flops, 1.0);
}

// The host's side of a buffer that a plan exchanges with the caller.
std::byte* host_side(const Plan& plan, std::span<const Placement> placements, std::size_t buffer, Role role) {
    if (buffer >= placements.size() || plan.buffers[buffer].role != role) {
        throw std::out_of_range("an input or a result that is not in a buffer of that role");
    }
    return placements[buffer].host;
}

}  // namespace

// What goes when the device is closed; in order of construction.
struct Executor::Work {
    Work(std::shared_ptr<const Context> context, Context::Candidate candidate)
        : device(std::move(context), std::move(candidate)),
          memory(device, !staging_wanted()),
          kernels(device),
          stream(device),
          recorder(device, kernels, stream) {}
    ~Work() {
        stream.recover();
        kernels.save(false);
    }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    LogicalDevice device;
    Memory memory;
    Kernels kernels;
    Stream stream;
    Recorder recorder;
};

Executor::Executor(std::shared_ptr<const Context> context, Context::Candidate candidate, Flavour flavour)
    : profile_(candidate.profile),
      flavour_(std::move(flavour)),
      process_(process_id()),
      plans_(kPlans),
      work_(std::make_unique<Work>(std::move(context), std::move(candidate))) {}

Executor::~Executor() { close(); }

void Executor::close() {
    if (process_ != process_id()) {
        // The driver's threads stayed behind in the other process: whatever is done to its objects here may hang.
        static_cast<void>(work_.release());
        closed_ = true;
        return;
    }
    const std::lock_guard guard(mutex_);
    work_.reset();
    closed_ = true;
    count_held();
}

std::shared_ptr<const Plan> Executor::plan(const Spec& spec) { return plans_.get(spec, profile_, flavour_); }

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

// A caller that waits for its turn may be interrupted as well.
std::unique_lock<std::timed_mutex> Executor::lock(const Poll& poll) {
    std::unique_lock guard(mutex_, std::try_to_lock);
    while (!guard.owns_lock()) {
        if (guard.try_lock_for(std::chrono::milliseconds(20))) {
            break;
        }
        if (poll && poll()) {
            throw Interrupted();
        }
    }
    return guard;
}

void Executor::run(const Plan& plan, std::span<const void* const> inputs, std::span<void* const> results,
                   std::string_view label, const Poll& poll) {
    const auto start = Clock::now();
    const std::string prefix = error_prefix(label);
    check_usable(prefix);
    const auto guard = lock(poll);
    check_usable(prefix);  // closed or lost meanwhile
    try {
        run_locked(plan, inputs, results, label, prefix, poll);
    } catch (...) {
        if (is_device_lost()) {
            lost_ = true;
        }
        work_->stream.recover();
        count_call(seconds_since(start), 0, nullptr);
        rethrow_translated(prefix);
    }
    count_call(seconds_since(start), work_->recorder.device_seconds(), &plan);
    work_->kernels.save(true);
}

void Executor::run_locked(const Plan& plan, std::span<const void* const> inputs, std::span<void* const> results,
                          std::string_view label, const std::string& prefix, const Poll& poll) {
    if (inputs.size() != plan.inputs.size() || results.size() != plan.results.size()) {
        throw std::invalid_argument("the arrays do not go with the plan");
    }
    if (lose_next_.exchange(false)) {
        work_->stream.lose_next();
    }
    const std::span<const Placement> placements = work_->memory.place(plan, prefix);
    work_->recorder.prepare(plan);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::size_t buffer = plan.inputs[i].second;
        copy(host_side(plan, placements, buffer, Role::input), inputs[i], plan.buffers[buffer].bytes);
    }
    for (std::size_t i = 0; i < placements.size(); ++i) {
        if (plan.buffers[i].role == Role::constant) {
            if (plan.buffers[i].contents.bytes.size() > plan.buffers[i].bytes) {
                throw std::out_of_range(plan.buffers[i].name + ": more contents than bytes");
            }
            resolve(plan.buffers[i].contents, placements, placements[i].host);
        }
    }
    for (const std::size_t buffer : plan.results) {
        static_cast<void>(host_side(plan, placements, buffer, Role::result));
    }
    work_->stream.start(poll, first_capacity(plan, profile_));
    work_->recorder.run(plan, placements, label);
    for (std::size_t i = 0; i < results.size(); ++i) {
        const std::size_t buffer = plan.results[i];
        copy(results[i], placements[buffer].host, plan.buffers[buffer].bytes);
    }
}

// `finished` is null for a call that failed.
void Executor::count_call(double host_seconds, double device_seconds, const Plan* finished) {
    {
        const std::lock_guard guard(statistics_mutex_);
        ++statistics_.calls;
        statistics_.last_host_seconds = host_seconds;
        statistics_.last_device_seconds = device_seconds;
        if (finished != nullptr) {
            for (const auto& [argument, buffer] : finished->inputs) {
                statistics_.bytes_uploaded += finished->buffers[buffer].bytes;
            }
            for (const std::size_t buffer : finished->results) {
                statistics_.bytes_downloaded += finished->buffers[buffer].bytes;
            }
        }
    }
    count_held();
}

void Executor::count_held() {
    const std::lock_guard guard(statistics_mutex_);
    statistics_.bytes_allocated = work_ ? work_->memory.held() : 0;
    statistics_.pipelines = work_ ? work_->kernels.size() : 0;
    if (work_) {
        statistics_.submissions = work_->stream.submissions();
        statistics_.dispatches = work_->recorder.dispatches();
    }
}

Statistics Executor::statistics() const {
    const std::lock_guard guard(statistics_mutex_);
    Statistics statistics = statistics_;
    statistics.plans = plans_.size();
    return statistics;
}

}  // namespace vkrnn::vk

namespace vkrnn {

std::shared_ptr<Device> Device::open(std::size_t index, const std::optional<Flavour>& flavour) {
    try {
        auto context = vk::Context::get();
        auto candidates = context->candidates();
        if (index >= candidates.size()) {
            throw DeviceError("there is no device " + std::to_string(index) + ": the last of " +
                              std::to_string(candidates.size()) + " is " + std::to_string(candidates.size() - 1));
        }
        vk::Context::Candidate& candidate = candidates[index];
        Flavour chosen = flavour ? *flavour : choose_flavour(candidate.profile);
        if (chosen.gemm == "broadcast") {
            vk::Executor other(context, std::move(context->candidates()[index]), chosen);  // leaves no trace in this one
            if (!vk::broadcasts_right(other)) {
                chosen.gemm = "register";
            }
        }
        return std::make_shared<vk::Executor>(std::move(context), std::move(candidate), chosen);
    } catch (...) {
        vk::rethrow_translated("opening the device: ");
    }
}

}  // namespace vkrnn
