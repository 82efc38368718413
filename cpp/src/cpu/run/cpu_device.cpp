#include "cpu/run/cpu_device.h"

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "base/messages.h"
#include "base/seconds.h"
#include "cpu/run/cpu_runner.h"
#include "cpu/threads/team.h"
#include "cpu/work/pieces.h"
#include "cpu/work/split.h"
#include "plan/cpu_work.h"
#include "run/buffer_references.h"
#include "run/call_buffers.h"
#include "vkrnn/error.h"

namespace vkrnn::cpu {
namespace {

const std::string kArray = "[Array] ";

// Smaller requests are not checked: asking how much memory is free costs more than a small call.
constexpr std::uint64_t kMany = 64 << 20;
// Smaller results for the host are allocated by NumPy.
constexpr std::uint64_t kLeastForHost = 4096;

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("model name")) {
            const auto colon = line.find(": ");
            if (colon != std::string::npos) return line.substr(colon + 2);
        }
    }
    return "processor";
}

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

// A dispatch whose buffer references have been replaced by addresses.
struct Task {
    const NamedKernel* kernel = nullptr;
    const std::uint32_t* constants = nullptr;
    std::vector<std::uint64_t> work{};  // a struct of cpu_work.h

    [[nodiscard]] const std::byte* bytes_of_work() const { return reinterpret_cast<const std::byte*>(work.data()); }
};

// Makes the tasks of a plan.
class TaskMaker {
public:
    TaskMaker(const Plan& plan, const Target& target, const Buffers& buffers) : plan_(plan), buffers_(buffers) {
        for (const Kernel& kernel : plan.kernels) kernels_.push_back(&find_kernel(target, kernel.shader));
    }

    [[nodiscard]] Task make(const Dispatch& dispatch) const {
        Task task{kernels_[dispatch.kernel], plan_.kernels[dispatch.kernel].constants.data()};
        task.work.resize((dispatch.push.bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
        copy_with_addresses(dispatch.push, plan_.buffers.size(), reinterpret_cast<std::byte*>(task.work.data()),
                            [&](std::size_t buffer) { return reinterpret_cast<std::uintptr_t>(buffers_.at(buffer)); });
        return task;
    }
    [[nodiscard]] std::vector<Task> make(const Wavefront::Piece& piece) const {
        std::vector<Task> tasks;
        for (const auto& step : piece) tasks.push_back(make(std::get<Dispatch>(step)));
        return tasks;
    }

private:
    const Plan& plan_;
    const Buffers& buffers_;
    std::vector<const NamedKernel*> kernels_;
};

// Runs a task on a team or a part of it. Returns false if it has been stopped.
bool run_task(const Task& task, Member& member) {
    task.kernel->run(task.bytes_of_work(), task.constants, member);
    return member.barrier(0, member.rank(), member.size(), false) != 0;
}

// Returns the estimated nanoseconds of a plan's time loops among `some` steps, on some threads. The lengths of a call
// are not considered.
double loop_time(const Plan& plan, const std::variant<Dispatch, Loop>& some, const Target& target, unsigned threads) {
    double sum = 0;
    for_each_dispatch(some, [&](const Dispatch& dispatch) {
        const Kernel& kernel = plan.kernels[dispatch.kernel];
        const NamedKernel& named = find_kernel(target, kernel.shader);
        if (named.time == nullptr) return;
        LoopWork work;
        std::memcpy(&work, dispatch.push.bytes.data(), sizeof(work));
        work.has_lengths = 0;
        sum += named.time(reinterpret_cast<const std::byte*>(&work), kernel.constants.data(), threads);
    });
    return sum;
}

// Returns into how many parts a team is divided for a wavefront. Each part runs one lane at a time.
unsigned parts_of(const Wavefront& wavefront, unsigned threads) {
    return std::min(threads, static_cast<unsigned>(wavefront.lanes.size()));
}

// Returns whether a plan's wavefronts are estimated to be faster than one layer after the other.
bool gains(const Plan& plan, const Target& target, unsigned threads) {
    // What wavefronts take, at most, of the time of one layer after the other.
    constexpr double kMostTime = 0.9;
    if (threads == 1 || contended()) return false;
    double at_once = 0, in_turn = 0;
    for (const Step& step : plan.steps) {
        const auto* const wavefront = std::get_if<Wavefront>(&step);
        if (wavefront == nullptr) continue;
        const unsigned parts = parts_of(*wavefront, threads);
        const auto pieces = static_cast<double>(wavefront->lanes.front().size());
        double sum = 0, longest = 0;
        for (const Wavefront::Lane& lane : wavefront->lanes) {  // the first piece has as many steps as the others
            in_turn += pieces * loop_time(plan, lane.front().front(), target, threads);
            const double time = loop_time(plan, lane.front().front(), target, threads / parts);
            sum += time;
            longest = std::max(longest, time);
        }
        at_once += pieces * std::max(sum / parts, longest) + (parts - 1) * longest;
    }
    return at_once + kThread * (threads - 1) < kMostTime * in_turn;
}

// The lanes of a wavefront. Parts of a team run them at the same time.
class Lanes {
public:
    Lanes(const Wavefront& wavefront, const TaskMaker& maker, unsigned most)
        : pieces_(wavefront.lanes.size(), wavefront.lanes.front().size()), taken_(parts_of(wavefront, most)) {
        for (const Wavefront::Lane& lane : wavefront.lanes) {
            auto& tasks = lanes_.emplace_back();
            for (const Wavefront::Piece& piece : lane) {
                tasks.push_back(maker.make(piece));
                dispatches_ += piece.size();
            }
        }
    }

    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }

    // Returns false if the team has been stopped.
    bool run(Member& member) {
        const unsigned size = member.size(), parts = std::min(size, static_cast<unsigned>(taken_.size()));
        const unsigned part = member.rank() * parts / size;
        const auto first_of = [&](unsigned some) { return (some * size + parts - 1) / parts; };
        Member of_part = member.in_part(first_of(part), first_of(part + 1) - first_of(part));
        run_part(of_part, part, parts);
        return member.barrier(0, member.rank(), size, false) != 0;
    }

private:
    void run_part(Member& member, unsigned part, unsigned parts) {
        using namespace std::chrono_literals;
        constexpr Clock::duration kMostSpin = 200us;
        Clock::duration spin = kMostSpin;
        std::optional<Pieces::Piece>& taken = taken_[part].piece;
        for (std::size_t lane = part;;) {
            if (member.rank() == 0) taken = pieces_.take(member, lane, parts, spin);
            if (member.barrier(0, member.rank(), member.size(), false) == 0 || !taken) return;
            lane = taken->lane;
            const auto start = Clock::now();
            for (const Task& task : lanes_[lane][taken->number])
                if (!run_task(task, member)) return;
            spin = std::min<Clock::duration>(kMostSpin, (Clock::now() - start) / 2);
            if (member.rank() == 0) pieces_.finish(*taken);
        }
    }

    // What a part of the team works on; nothing at the end.
    struct alignas(64) Taken {
        std::optional<Pieces::Piece> piece{};
    };

    std::vector<std::vector<std::vector<Task>>> lanes_{};  // by lane and piece
    Pieces pieces_;
    std::vector<Taken> taken_;  // by part
    std::uint64_t dispatches_ = 0;
};

// The work of a plan on at most `most` threads.
class Work {
public:
    // Clears buffers at once, because no dispatch writes them.
    Work(const Plan& plan, const Target& target, const Buffers& buffers, unsigned most) {
        const TaskMaker maker(plan, target, buffers);
        for (const Step& step : plan.steps) {
            if (const auto* clear = std::get_if<Clear>(&step)) {
                std::fill_n(buffers.at(clear->buffer), plan.buffers[clear->buffer].bytes, std::byte{});
            } else if (const auto* wavefront = std::get_if<Wavefront>(&step)) {
                auto lanes = std::make_unique<Lanes>(*wavefront, maker, most);
                threads_ = most;
                dispatches_ += lanes->dispatches();
                parts_.emplace_back(std::move(lanes));
            } else {
                const auto& dispatch = std::get<Dispatch>(step);
                if (buffers.is_left_out(dispatch.fills)) continue;
                Task task = maker.make(dispatch);
                threads_ = std::max(threads_, task.kernel->threads(task.bytes_of_work(), task.constants, most));
                ++dispatches_;
                parts_.emplace_back(std::move(task));
            }
        }
    }

    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }

    void run(const Poll& poll) {
        run_on_team(threads_, poll, [&](Member& member) {
            for (const auto& part : parts_) {
                const auto* const task = std::get_if<Task>(&part);
                if (!(task != nullptr ? run_task(*task, member) : std::get<std::unique_ptr<Lanes>>(part)->run(member)))
                    return;
            }
        });
    }

private:
    std::vector<std::variant<Task, std::unique_ptr<Lanes>>> parts_;
    unsigned threads_ = 1;
    std::uint64_t dispatches_ = 0;
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
    found.name = "cpu (" + processor_name() + ")";
    found.backend = Backend::native;
    found.driver = "native";
    found.driver_version = std::string(target.name);
    found.type = DeviceType::cpu;
    found.subgroup_size = target.lanes;
    found.memory_bytes =
        static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
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
    const bool in_turn = plan->in_turn && !gains(*plan, target_, most_threads(prefix));
    const Plan& used = in_turn ? *plan->in_turn : *plan;
    const auto attempt = [&] {
        Buffers buffers(used, memory_, inputs, results);
        for (;;) {
            Work work(used, target_, buffers, most_threads(prefix));
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
