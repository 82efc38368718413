#include "cuda/run/execution.h"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <variant>

#include "run/buffer_references.h"
#include "run/poll.h"

namespace vkrnn::cuda {
namespace {

// Kernels load and store vectors of this many bytes. Vulkan's rule for them is weaker.
constexpr std::uint64_t kVectorBytes = 16;
constexpr std::uint64_t kLaunchesPerPoll = 1024;
// The dispatches of the longest branch from which on branches have streams of their own.
constexpr std::size_t kLeastInBranch = 3;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kCudaAlignment - 1) / kCudaAlignment * kCudaAlignment; }

std::vector<std::uint64_t> words_for(std::size_t bytes) { return std::vector<std::uint64_t>((bytes + 7) / 8); }

std::byte* bytes_of(std::vector<std::uint64_t>& words) { return reinterpret_cast<std::byte*>(words.data()); }

}  // namespace

CudaStorage& own(const Memory& memory, const Storage& storage) {
    const auto* found = dynamic_cast<const CudaStorage*>(&storage);
    if (found == nullptr || &found->memory() != &memory) throw std::invalid_argument("storage of another device");
    return const_cast<CudaStorage&>(*found);  // NOLINT(cppcoreguidelines-pro-type-const-cast): only its order changes
}

Execution::Execution(std::shared_ptr<Memory> memory, const Plan& plan, Stream stream, const CudaAllocator* allocate,
                     SideStreams& side_streams)
    : memory_(std::move(memory)),
      plan_(plan),
      stream_(stream),
      side_streams_(side_streams),
      allocate_(allocate),
      placements_(plan.buffers.size()),
      buffers_(plan) {}

Execution::~Execution() {
    if (temporary_ != 0 && allocate_ == nullptr) memory_->free(temporary_, stream_);
}

Address Execution::allocate(std::uint64_t bytes) const {
    if (allocate_ == nullptr) return memory_->allocate(bytes, stream_);
    const Address address = (*allocate_)(bytes);
    if (address == 0) throw DriverError{kOutOfMemory, {}};
    if (address % kCudaAlignment != 0) throw std::logic_error("the caller's memory is not aligned");
    return address;
}

void Execution::bind(std::span<const InputLocation> inputs, std::span<const ResultLocation> results) {
    check_operands(plan_, inputs, results);
    {
        const std::lock_guard lock(memory_->mutex());
        for (std::size_t i = 0; i < inputs.size(); ++i)
            if (inputs[i].storage)
                placements_[plan_.inputs[i].second] = use(*inputs[i].storage).address() + inputs[i].offset;
        buffers_.find_prepacked(inputs);
        for (const auto& each : buffers_.prepacked()) each.copy->piece.last_use().before(stream_);
        for (std::size_t i = 0; i < results.size(); ++i) {
            if (!results[i].storage) continue;
            written_.push_back(&use(*results[i].storage));
            placements_[plan_.results[i]] = written_.back()->address() + results[i].offset;
        }
    }
    // Without holding the mutex, because an allocation that fails locks it.
    buffers_.make_prepacked([&](std::uint64_t bytes, std::uint64_t version) {
        return std::make_shared<const PrepackedCopy>(memory_, bytes, version, stream_);
    });
    for (const auto& each : buffers_.prepacked()) placements_[each.buffer] = each.copy->piece.address();
    place_rest(inputs, results);
    copy_inputs();
}

CudaStorage& Execution::use(const Storage& storage) {
    CudaStorage& used = own(*memory_, storage);
    if (used.is_tracked()) {
        used.last_use().before(stream_);
        used_.push_back(&used);
    }
    return used;
}

// Allocates one piece of memory for everything that only this call needs.
void Execution::place_rest(std::span<const InputLocation> inputs, std::span<const ResultLocation> results) {
    const bool has_zeros = plan_.buffers.at(kZerosBuffer).bytes <= Memory::kZeroBytes;
    if (has_zeros) placements_[kZerosBuffer] = memory_->zeros();
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i)
        if (plan_.buffers[i].role == Role::failed_waits)
            placements_[i] = reinterpret_cast<std::uintptr_t>(&memory_->failed_waits());
    buffers_.lay_out(kCudaAlignment, ~std::uint64_t{0}, [&](std::size_t buffer) {
        return (has_zeros && buffer == kZerosBuffer) || plan_.buffers[buffer].role == Role::constant;
    });
    const auto reserve = [&](std::uint64_t bytes) {
        return std::exchange(temporary_bytes_, temporary_bytes_ + aligned(bytes));
    };
    std::vector<std::uint64_t> pieces;
    for (const std::uint64_t piece : buffers_.layout().pieces) pieces.push_back(reserve(piece));
    std::vector<std::pair<std::size_t, std::uint64_t>> placed;  // buffers, and their offsets
    for (std::size_t i = 0; i < buffers_.scratch().size(); ++i) {
        const auto [piece, offset] = buffers_.layout().spots[i];
        placed.emplace_back(buffers_.scratch()[i], pieces[piece] + offset);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::size_t buffer = plan_.inputs[i].second;
        if (inputs[i].storage && suits_kernels(placements_[buffer], kVectorBytes)) continue;
        before_.push_back({inputs[i].host, placements_[buffer], buffer});
        placed.emplace_back(buffer, reserve(plan_.buffers[buffer].bytes));
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
        const std::size_t buffer = plan_.results[i];
        const std::uint64_t bytes = plan_.buffers[buffer].bytes;
        if (results[i].storage && suits_kernels(placements_[buffer], kVectorBytes, bytes)) continue;
        after_.push_back({results[i].host, placements_[buffer], buffer});
        placed.emplace_back(buffer, reserve(bytes));
    }
    if (temporary_bytes_ == 0) return;
    temporary_ = allocate(temporary_bytes_);
    for (const auto& [buffer, offset] : placed) placements_[buffer] = temporary_ + offset;
}

void Execution::copy_inputs() {
    const Functions& cu = driver();
    for (const auto& [host, from, buffer] : before_) {
        const std::uint64_t bytes = plan_.buffers[buffer].bytes;
        if (from != 0) {
            check(cu.MemcpyDtoDAsync(placements_[buffer], from, bytes, stream_));
        } else {
            check(cu.MemcpyHtoDAsync(placements_[buffer], host, bytes, stream_));
            uploaded_ += bytes;
        }
    }
}

void Execution::launch(const std::vector<LoadedKernel>& kernels, Products& products, const Poll& poll) {
    kernels_ = &kernels;
    products_ = &products;
    poll_ = &poll;
    const auto is_clear = [](const Step& each) { return std::holds_alternative<Clear>(each); };
    for (auto next = plan_.steps.begin(); next != plan_.steps.end(); ++next) {
        const auto other = std::find_if_not(next, plan_.steps.end(), is_clear);
        clear({next, other});
        if (other == plan_.steps.end()) return;
        next = other;
        const auto run = [&]<class Each>(const Each& each) {
            if constexpr (!std::same_as<Each, Clear>) step(each);
        };
        std::visit(run, *next);
    }
}

bool Execution::has_host_results() const {
    return std::ranges::any_of(after_, [](const auto& copy) { return copy.host != nullptr; });
}

void Execution::copy_results() {
    const Functions& cu = driver();
    for (const auto& [host, to, buffer] : after_) {
        const std::uint64_t bytes = plan_.buffers[buffer].bytes;
        if (host != nullptr) {
            check(cu.MemcpyDtoHAsync(host, placements_[buffer], bytes, stream_));
            downloaded_ += bytes;
        } else {
            check(cu.MemcpyDtoDAsync(to, placements_[buffer], bytes, stream_));
        }
    }
}

void Execution::clear(std::span<const Step> clears) {
    std::vector<std::pair<Address, Address>> ranges;
    for (const Step& each : clears) {
        const auto& [buffer, fills] = std::get<Clear>(each);
        const Address begin = placements_.at(buffer);
        const auto& [name, role, bytes, contents, prepacking] = plan_.buffers.at(buffer);
        if (is_left_out(buffers_.full(), fills) || bytes == 0 || begin == memory_->zeros()) continue;
        ranges.emplace_back(begin, begin + (role == Role::scratch ? aligned(bytes) : bytes));
    }
    std::ranges::sort(ranges);
    for (auto first = ranges.begin(); first != ranges.end();) {
        auto next = first + 1;
        while (next != ranges.end() && next->first == std::prev(next)->second) ++next;
        check(driver().MemsetD8Async(first->first, 0, std::prev(next)->second - first->first, stream_));
        first = next;
    }
}

void Execution::step(const Dispatch& dispatch) {
    if (is_left_out(buffers_.full(), dispatch.fills)) return;
    Launch prepared = prepare(dispatch);
    launch(prepared);
}

void Execution::step(const Loop& loop) {
    std::vector<Launch> body;
    for (const Dispatch& dispatch : loop.body) body.push_back(prepare(dispatch));
    for (std::int64_t i = 0; i < loop.count; ++i) {
        const auto counter = static_cast<std::int32_t>(loop.first + i * loop.increment);
        for (Launch& each : body) {
            const auto& at = each.dispatch.counter;
            if (at) std::memcpy(bytes_of(each.push) + *at, &counter, sizeof(counter));
            launch(each);
        }
    }
}

void Execution::run(const Sequence& sequence) {
    for (const auto& each : sequence) std::visit([&](const auto& next) { step(next); }, each);
}

bool Execution::gains(const Branches& branches) const {
    return std::ranges::any_of(branches.branches, [&](const Sequence& branch) {
        std::size_t dispatches = 0;
        for (const auto& step : branch)
            for_each_dispatch(step, [&](const Dispatch& dispatch) {
                if (!is_left_out(buffers_.full(), dispatch.fills)) ++dispatches;
            });
        return dispatches >= kLeastInBranch;
    });
}

void Execution::step(const Branches& branches) {
    if (!gains(branches)) {
        for (const Sequence& branch : branches.branches) run(branch);
        return;
    }
    const SideStreams::Lease lease(side_streams_, stream_, branches.branches.size());
    for (std::size_t i = 0; i < branches.branches.size(); ++i) {
        current_ = lease.stream(i);
        run(branches.branches[i]);
    }
    current_ = stream_;
}

void Execution::step(const Wavefront& wavefront) {
    const std::size_t lanes = wavefront.lanes.size();
    const SideStreams::Lease lease(side_streams_, stream_, lanes);
    const auto run_on = [&](std::size_t lane, const Sequence& piece) {
        current_ = lease.stream(lane);
        run(piece);
    };
    for (std::size_t piece = 0; piece < wavefront.lanes.front().pieces.size(); ++piece)
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            if (piece == 0) run_on(lane, wavefront.lanes[lane].before);
            if (lane > 0) lease.wait(lane, lane - 1);
            run_on(lane, wavefront.lanes[lane].pieces[piece]);
            lease.record(lane);
        }
    for (std::size_t lane = 0; lane < lanes; ++lane) run_on(lane, wavefront.lanes[lane].after);
    current_ = stream_;
}

Execution::Launch Execution::prepare(const Dispatch& dispatch) {
    const auto address_of = [&](std::size_t buffer) { return placements_[buffer]; };
    const Block& push = dispatch.push;
    Launch made{dispatch, words_for(push.bytes.size()), {}, {}};
    copy_with_addresses(push, placements_.size(), bytes_of(made.push), address_of);
    if (kernels_->at(dispatch.kernel).function == Function{})
        made.product = products_->bind(plan_.kernels[dispatch.kernel], std::as_bytes(std::span(made.push)));
    if (const auto parameters = loop_parameters(plan_, dispatch)) {
        const Block& contents = plan_.buffers[*parameters].contents;
        made.params = words_for(contents.bytes.size());
        copy_with_addresses(contents, placements_.size(), bytes_of(made.params), address_of);
    }
    return made;
}

void Execution::launch(Launch& prepared) {
    if (++launched_ % kLaunchesPerPoll == 0) ask(*poll_);
    if (prepared.product) return products_->run(*prepared.product, current_);
    const LoadedKernel& kernel = kernels_->at(prepared.dispatch.kernel);
    void* parameters[] = {prepared.push.data(), prepared.params.data()};
    const auto& groups = prepared.dispatch.groups;
    check(driver().LaunchKernel(kernel.function, groups[0], groups[1], groups[2], kernel.threads, 1, 1,
                                prepared.dispatch.launch_shared_memory, current_, static_cast<void**>(parameters),
                                nullptr));
}

void Execution::give_up() noexcept {
    if (memory_->is_foreign()) return;
    try {
        const std::lock_guard lock(memory_->mutex());
        mark_used();
    } catch (const DriverError&) {  // the call's own error is reported instead
    }
}

void Execution::mark_used() {
    for (CudaStorage* storage : written_) storage->changed();
    for (CudaStorage* storage : used_) storage->last_use().after(stream_);
    for (const auto& each : buffers_.prepacked()) each.copy->piece.last_use().after(stream_);
}

void Execution::finish() {
    const std::lock_guard lock(memory_->mutex());
    mark_used();
    static_cast<void>(buffers_.keep_prepacked());
}

}  // namespace vkrnn::cuda
