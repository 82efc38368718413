#include "cpu/run/cpu_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "base/messages.h"
#include "base/seconds.h"
#include "base/system.h"
#include "cpu/run/cpu_runner.h"
#include "cpu/run/plan_work.h"
#include "cpu/threads/team.h"
#include "run/call_buffers.h"
#include "vkrnn/error.h"

namespace vkrnn::cpu {
namespace {

const std::string kArray = "[Array] ";

// Smaller requests are not checked: asking how much memory is free costs more than a small call.
constexpr std::uint64_t kMany = 64 << 20;
// Smaller results for the host are allocated by NumPy.
constexpr std::uint64_t kLeastForHost = 4096;

template <class Byte>
std::byte* host_address(const TensorLocation<Byte>& operand) {
    if (operand.storage) return operand.storage->host() + operand.offset;
    // Kernels never write inputs.
    return static_cast<std::byte*>(const_cast<void*>(operand.host));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

// The memory of a plan's buffers during one call.
class Buffers {
public:
    Buffers(const Plan& plan, std::shared_ptr<Memory> memory, std::span<const InputLocation> inputs,
            std::span<const ResultLocation> results)
        : memory_(std::move(memory)), buffers_(plan), at_(plan.buffers.size()) {
        check_operands(plan, inputs, results);
        for (std::size_t i = 0; i < inputs.size(); ++i) at_[plan.inputs[i].second] = host_address(inputs[i]);
        for (std::size_t i = 0; i < results.size(); ++i) at_[plan.results[i]] = host_address(results[i]);
        {
            const std::lock_guard lock(memory_->mutex());
            buffers_.find_prepacked(inputs);
        }
        buffers_.make_prepacked([&](std::uint64_t bytes, std::uint64_t version) {
            return std::make_shared<const PrepackedCopy>(memory_, bytes, version);
        });
        for (const auto& each : buffers_.prepacked()) at_[each.buffer] = each.copy->lease.data();
        buffers_.lay_out(kAlignment, ~std::uint64_t{0}, [](std::size_t /*buffer*/) { return false; });
        scratch_.emplace(memory_, buffers_.layout().bytes(), Memory::Use::brief);
        for (std::size_t i = 0; i < buffers_.scratch().size(); ++i)
            at_[buffers_.scratch()[i]] = scratch_->data() + buffers_.layout().spots[i].offset;
    }

    // Returns null for a buffer that is not needed.
    [[nodiscard]] std::byte* at(std::size_t buffer) const { return at_[buffer]; }

    // Fills with zeros what the plan clears. No dispatch writes it, so that can be done before all of them.
    void clear(const Plan& plan) const {
        for (const Step& step : plan.steps)
            if (const auto* const each = std::get_if<Clear>(&step))
                std::fill_n(at(each->buffer), plan.buffers[each->buffer].bytes, std::byte{});
    }

    [[nodiscard]] bool is_left_out(std::size_t fills) const { return vkrnn::is_left_out(buffers_.full(), fills); }

    // Stores the new prepacked copies with their arrays, for later calls.
    void keep_prepacked() {
        if (!buffers_.has_new_copies()) return;
        PrepackedCopies<PrepackedCopy>::List dropped;  // destroyed after the lock
        const std::lock_guard lock(memory_->mutex());
        dropped = buffers_.keep_prepacked();
    }

private:
    const std::shared_ptr<Memory> memory_;
    CallBuffers<HostStorage, PrepackedCopy> buffers_;
    std::vector<std::byte*> at_;
    std::optional<Lease> scratch_;
};

unsigned most_threads(std::string_view prefix) {
    const unsigned most = allowed_threads(prefix);
    // If other software uses the second processor, waiting for it takes longer than doing its share of the work.
    return most == 2 && contended() ? 1 : most;
}

// Marks the storages of a call's results as written when it is destroyed, even if the call has failed.
struct Changes {
    std::span<const ResultLocation> results;
    ~Changes() {
        for (const ResultLocation& result : results)
            if (result.storage) result.storage->changed();
    }
};

}  // namespace

Profile profile() {
    const Target& target = chosen_target();
    Profile found;
    const std::string processor = system::processor_name();
    found.name = "cpu (" + (processor.empty() ? "processor" : processor) + ")";
    found.backend = Backend::native;
    found.driver = "native";
    found.driver_version = std::string(target.name);
    found.type = DeviceType::cpu;
    found.subgroup_size = target.lanes;
    found.memory_bytes = system::physical_memory();
    found.max_allocation = std::uint64_t{1} << 47;
    found.unified_memory = true;
    found.float64 = true;
    return found;
}

CpuDevice::CpuDevice(StrategyChoice fixed)
    : target_(chosen_target()), profile_(cpu::profile()), fixed_(std::move(fixed)) {}

std::shared_ptr<const Plan> CpuDevice::plan(const Spec& spec) { return plans_.get(spec, profile_, fixed_); }

void CpuDevice::check_usable(const std::string& prefix) const {
    if (closed_) throw DeviceError(prefix + "the device is closed; open a new vkrnn.Device");
}

std::uint64_t CpuDevice::free_memory() const { return host_memory_available() + memory_->unused(); }

void CpuDevice::throw_no_room(const std::string& prefix, std::uint64_t bytes) const {
    const std::uint64_t free = free_memory();
    throw MemoryError(prefix + "the call needs " + bytes_text(bytes) + " of device memory, " + bytes_text(free) +
                          " are free on " + profile_.name,
                      bytes, free);
}

void CpuDevice::throw_no_array(std::uint64_t bytes) const {
    const std::uint64_t free = std::min(free_memory(), profile_.max_allocation);
    throw MemoryError(kArray + "the array needs " + bytes_text(bytes) + ", " + bytes_text(free) + " are available on " +
                          profile_.name,
                      bytes, free);
}

void CpuDevice::require_room(const Plan& /*plan*/, std::uint64_t bytes, std::string_view label) {
    const std::string prefix = error_prefix(label);
    check_usable(prefix);
    if (bytes <= kMany) return;
    if (bytes > free_memory()) throw_no_room(prefix, bytes);
}

std::shared_ptr<Storage> CpuDevice::allocate(std::uint64_t bytes, bool /*host_writes*/) {
    check_usable(kArray);
    if (bytes > kMany && bytes > std::min(free_memory(), profile_.max_allocation)) throw_no_array(bytes);
    try {
        return std::make_shared<HostStorage>(memory_, bytes);
    } catch (const std::bad_alloc&) {
        throw_no_array(bytes);
    }
}

std::shared_ptr<Storage> CpuDevice::allocate_for_host(std::uint64_t bytes) {
    check_usable(kArray);
    // NumPy allocates small arrays faster and with less overhead.
    return bytes < kLeastForHost ? nullptr : allocate(bytes, false);
}

void CpuDevice::run(const std::shared_ptr<const Plan>& plan, std::span<const InputLocation> inputs,
                    std::span<const ResultLocation> results, bool /*wait*/, std::string_view label, const Poll& poll) {
    const auto start = Clock::now();
    const std::string prefix = error_prefix(label);
    check_usable(prefix);
    const Changes changes{results};
    const unsigned most = most_threads(prefix);
    const TeamDivision division = divide_team(*plan, target_, most);
    const Plan& used = plan->in_turn.plan && !division.gains ? *plan->in_turn.plan : *plan;
    const auto attempt = [&] {
        Buffers buffers(used, memory_, inputs, results);
        for (;;) {
            buffers.clear(used);
            PlanWork work(
                used, target_, most, division.parts, [&](std::size_t buffer) { return buffers.at(buffer); },
                [&](std::size_t fills) { return buffers.is_left_out(fills); });
            try {
                work.run(poll);
            } catch (const Forked&) {  // the child computes everything again with its own threads
                continue;
            }
            buffers.keep_prepacked();
            return work.dispatches();
        }
    };
    std::uint64_t dispatches = 0;
    try {
        try {
            dispatches = attempt();
        } catch (const std::bad_alloc&) {
            // Scratch memory of threads and NumPy's arrays do not come from the pool, so they may lack memory that it
            // keeps unused.
            if (!memory_->release_unused()) throw;
            dispatches = attempt();
        }
    } catch (const std::bad_alloc&) {
        throw_no_room(prefix, plan->temporary_bytes());
    }
    const double seconds = seconds_since(start);
    const std::lock_guard lock(mutex_);
    ++statistics_.calls;
    ++statistics_.submissions;
    statistics_.dispatches += dispatches;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (!inputs[i].storage) statistics_.bytes_imported += plan->buffers[plan->inputs[i].second].bytes;
    statistics_.last_device_seconds = statistics_.last_host_seconds = seconds;
}

std::unique_ptr<StreamRunner> CpuDevice::make_stream_runner(std::span<const StreamPart> layers, unsigned threads) {
    std::vector<std::shared_ptr<const Plan>> plans;
    std::uint64_t bytes = 0;
    for (const StreamPart& layer : layers) {
        Spec spec = layer.spec;
        if (is_half(spec.dtype)) spec.dtype = Dtype::float32;
        const Plan& made = *plans.emplace_back(plan(spec));
        // Sources and outputs are in the caller's memory.
        std::vector<std::size_t> existing = made.results;
        for (const auto& [argument, buffer] : made.inputs)
            if (argument == Argument::source) existing.push_back(buffer);
        bytes += made.peak_bytes(existing);
    }
    require_room(*plans.front(), bytes, "[stream]");
    try {
        return std::make_unique<CpuRunner>(target_, memory_, layers, plans, threads);
    } catch (const std::bad_alloc&) {
        const std::uint64_t free = host_memory_available();
        throw MemoryError("[stream] the stream needs " + bytes_text(bytes) + " of device memory, " + bytes_text(free) +
                              " are free on " + profile_.name,
                          bytes, free);
    }
}

void CpuDevice::upload(const ResultLocation& to, const void* from, std::uint64_t bytes, const Poll& /*poll*/) {
    check_usable(kArray);
    std::memcpy(to.storage->host() + to.offset, from, bytes);
    to.storage->changed();
    const std::lock_guard lock(mutex_);
    statistics_.bytes_uploaded += bytes;
}

void CpuDevice::download(void* to, const InputLocation& from, std::uint64_t bytes, const Poll& /*poll*/) {
    check_usable(kArray);
    std::memcpy(to, from.storage->host() + from.offset, bytes);
    const std::lock_guard lock(mutex_);
    statistics_.bytes_downloaded += bytes;
}

void CpuDevice::copy(const ResultLocation& to, const InputLocation& from, std::uint64_t bytes, const Poll& /*poll*/) {
    check_usable(kArray);
    std::memcpy(to.storage->host() + to.offset, from.storage->host() + from.offset, bytes);
    to.storage->changed();
}

void CpuDevice::clear(const std::shared_ptr<Storage>& storage, const Poll& /*poll*/) {
    check_usable(kArray);
    std::memset(storage->host(), 0, storage->bytes());
    storage->changed();
}

void CpuDevice::wait(const Storage& /*storage*/, const Poll& /*poll*/) { check_usable(kArray); }

void CpuDevice::synchronize(const Poll& /*poll*/) { check_usable("[Device] "); }

void CpuDevice::close() {
    closed_ = true;
    memory_->close();
}

void CpuDevice::lose_for_test() { throw NotImplementedError("[Device] the CPU device cannot be lost"); }

Statistics CpuDevice::statistics() const {
    const std::size_t plans = plans_.size();
    const std::uint64_t held = memory_->held();
    const std::lock_guard lock(mutex_);
    Statistics statistics = statistics_;
    statistics.plans = plans;
    statistics.bytes_allocated = held;
    return statistics;
}

}  // namespace vkrnn::cpu
