#include "cuda/run/cuda_call.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <variant>

#include "plan/scratch.h"
#include "run/buffer_references.h"
#include "run/poll.h"

namespace vkrnn::cuda {
namespace {

// Kernels load and store vectors of this many bytes. Vulkan's rule for them is weaker.
constexpr std::uint64_t kVectorBytes = 16;
// Kernels that convert results to a 16-bit type store whole words, each of which holds two elements.
constexpr std::uint64_t kWordBytes = 4;
constexpr std::uint64_t kLaunchesPerPoll = 1024;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kCudaAlignment - 1) / kCudaAlignment * kCudaAlignment; }

std::vector<std::uint64_t> words_for(std::size_t bytes) { return std::vector<std::uint64_t>((bytes + 7) / 8); }

std::byte* bytes_of(std::vector<std::uint64_t>& words) { return reinterpret_cast<std::byte*>(words.data()); }

}  // namespace

CudaStorage& own(const Memory& memory, const Storage& storage) {
    const auto* found = dynamic_cast<const CudaStorage*>(&storage);
    if (found == nullptr || &found->memory() != &memory) throw std::invalid_argument("storage of another device");
    return const_cast<CudaStorage&>(*found);  // NOLINT(cppcoreguidelines-pro-type-const-cast): only its order changes
}

Call::Call(std::shared_ptr<Memory> memory, const Plan& plan, Stream stream, const CudaAllocator* allocate)
    : memory_(std::move(memory)), plan_(plan), stream_(stream), allocate_(allocate), placements_(plan.buffers.size()) {}

Call::~Call() {
    if (temporary_ != 0 && allocate_ == nullptr) memory_->free(temporary_, stream_);
}

Address Call::allocate(std::uint64_t bytes) const {
    if (allocate_ == nullptr) return memory_->allocate(bytes, stream_);
    const Address address = (*allocate_)(bytes);
    if (address == 0) throw DriverError{kOutOfMemory, {}};
    if (address % kCudaAlignment != 0) throw std::logic_error("the caller's memory is not aligned");
    return address;
}

void Call::bind(std::span<const InputLocation> inputs, std::span<const ResultLocation> results) {
    if (inputs.size() != plan_.inputs.size() || results.size() != plan_.results.size())
        throw std::invalid_argument("the arrays do not match the plan");
    {
        const std::lock_guard lock(memory_->mutex());
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            const std::size_t buffer = plan_.inputs[i].second;
            if (!inputs[i].storage) continue;
            placements_[buffer] = use(inputs[i].storage, inputs[i].offset, plan_.buffers[buffer].bytes);
            find_packed(buffer, inputs[i]);
        }
        for (std::size_t i = 0; i < results.size(); ++i) {
            const std::size_t buffer = plan_.results[i];
            if (!results[i].storage) continue;
            placements_[buffer] = use(results[i].storage, results[i].offset, plan_.buffers[buffer].bytes);
            written_.push_back(&own(*memory_, *results[i].storage));
        }
    }
    make_packed();
    place_rest(inputs, results);
    copy_inputs(inputs);
}

Address Call::use(const std::shared_ptr<Storage>& storage, std::uint64_t offset, std::uint64_t bytes) {
    CudaStorage& used = own(*memory_, *storage);
    if (offset > used.bytes() || bytes > used.bytes() - offset)
        throw std::out_of_range("a tensor extends beyond its storage");
    if (used.is_tracked()) {
        used.last_use().before(stream_);
        used_.push_back(&used);
    }
    return used.address() + offset;
}

void Call::find_packed(std::size_t input, const InputLocation& operand) {
    CudaStorage& storage = own(*memory_, *operand.storage);
    const auto version = storage.is_shared() ? std::nullopt : storage.version();
    if (!version) return;
    for (std::size_t at = 0; at < plan_.buffers.size(); ++at) {
        const PlanBuffer& packed = plan_.buffers[at];
        if (packed.role != Role::packed || packed.packing.input != input) continue;
        PackedKey key{operand.offset, plan_.buffers[input].bytes, packed.packing.layout};
        std::shared_ptr<PackedCopy> copy = std::const_pointer_cast<PackedCopy>(storage.copies().find(key, version));
        if (!copy) {
            made_.push_back({&storage, at, *version, std::move(key), nullptr});
            continue;
        }
        full_.push_back(at);
        copy->piece.last_use().before(stream_);
        placements_[at] = copy->piece.address();
        packed_.push_back(std::move(copy));
    }
}

// Call this without holding the memory's mutex, because an allocation that fails locks it.
void Call::make_packed() {
    for (Made& each : made_) {
        each.copy = std::make_shared<PackedCopy>(memory_, plan_.buffers[each.buffer].bytes, each.version, stream_);
        placements_[each.buffer] = each.copy->piece.address();
        packed_.push_back(each.copy);
    }
}

// Allocates one piece of memory for everything that only this call needs.
void Call::place_rest(std::span<const InputLocation> inputs, std::span<const ResultLocation> results) {
    std::vector<std::size_t> scratch;
    const bool has_zeros = plan_.buffers.at(kZerosBuffer).bytes <= Memory::kZeroBytes;
    if (has_zeros) placements_[kZerosBuffer] = memory_->zeros();
    for (std::size_t i = has_zeros ? kZerosBuffer + 1 : 0; i < plan_.buffers.size(); ++i) {
        const Role role = plan_.buffers[i].role;
        if (role == Role::scratch || (role == Role::packed && placements_[i] == 0)) scratch.push_back(i);
    }
    const ScratchLayout layout = place_scratch(plan_, scratch, kCudaAlignment, ~std::uint64_t{0});
    std::vector<std::uint64_t> starts;
    std::uint64_t bytes = 0;
    const auto add = [&](std::uint64_t more) {
        starts.push_back(bytes);
        bytes += aligned(more);
    };
    for (const std::uint64_t piece : layout.pieces) add(piece);
    std::vector<std::size_t> copied;  // buffers of inputs and results that are copied
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::size_t buffer = plan_.inputs[i].second;
        if (!inputs[i].storage || placements_[buffer] % kVectorBytes != 0) copied.push_back(buffer);
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
        const std::size_t buffer = plan_.results[i];
        const std::uint64_t size = plan_.buffers[buffer].bytes;
        const Address at = placements_[buffer];
        if (results[i].storage && at % kVectorBytes == 0 && size % kWordBytes == 0) continue;
        after_.push_back({results[i].host, at, 0, size});
        copied.push_back(buffer);
    }
    for (const std::size_t buffer : copied) add(plan_.buffers[buffer].bytes);
    temporary_bytes_ = bytes;
    if (bytes == 0) return;
    temporary_ = allocate(bytes);
    for (std::size_t i = 0; i < scratch.size(); ++i)
        placements_[scratch[i]] = temporary_ + starts[layout.spots[i].piece] + layout.spots[i].offset;
    for (std::size_t i = 0; i < copied.size(); ++i) {
        const Address at = temporary_ + starts[layout.pieces.size() + i];
        const std::size_t first_result = copied.size() - after_.size();
        if (i >= first_result) {
            after_[i - first_result].from = at;
            placements_[copied[i]] = at;
        } else {
            moved_.emplace_back(copied[i], std::exchange(placements_[copied[i]], at));
        }
    }
}

void Call::copy_inputs(std::span<const InputLocation> inputs) {
    const Functions& cu = driver();
    for (const auto& [buffer, from] : moved_) {
        const std::uint64_t bytes = plan_.buffers[buffer].bytes;
        if (from != 0) {
            check(cu.MemcpyDtoDAsync(placements_[buffer], from, bytes, stream_));
            continue;
        }
        const auto input = std::ranges::find(plan_.inputs, buffer, &std::pair<Argument, std::size_t>::second);
        const void* const host = inputs[static_cast<std::size_t>(input - plan_.inputs.begin())].host;
        check(cu.MemcpyHtoDAsync(placements_[buffer], host, bytes, stream_));
        uploaded_ += bytes;
    }
}

bool Call::is_left_out(std::size_t fills) const {
    return fills != kNoBuffer && std::ranges::find(full_, fills) != full_.end();
}

void Call::launch(const std::vector<LoadedKernel>& kernels, Products& products, const Poll& poll) {
    kernels_ = &kernels;
    products_ = &products;
    poll_ = &poll;
    for (const Step& next : plan_.steps) std::visit([&](const auto& each) { step(each); }, next);
}

bool Call::has_host_results() const {
    return std::ranges::any_of(after_, [](const After& copy) { return copy.host != nullptr; });
}

void Call::copy_results() {
    const Functions& cu = driver();
    for (const After& copy : after_) {
        if (copy.host != nullptr) {
            check(cu.MemcpyDtoHAsync(copy.host, copy.from, copy.bytes, stream_));
            downloaded_ += copy.bytes;
        } else {
            check(cu.MemcpyDtoDAsync(copy.to, copy.from, copy.bytes, stream_));
        }
    }
}

void Call::step(const Clear& clear) {
    const std::uint64_t bytes = plan_.buffers.at(clear.buffer).bytes;
    if (is_left_out(clear.fills) || bytes == 0 || placements_[clear.buffer] == memory_->zeros()) return;
    check(driver().MemsetD8Async(placements_[clear.buffer], 0, bytes, stream_));
}

void Call::step(const Dispatch& dispatch) {
    if (is_left_out(dispatch.fills)) return;
    Launch prepared = prepare(dispatch);
    launch(prepared);
}

void Call::step(const Loop& loop) {
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

Call::Launch Call::prepare(const Dispatch& dispatch) {
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

void Call::launch(Launch& prepared) {
    if (++launched_ % kLaunchesPerPoll == 0) ask(*poll_);
    if (prepared.product) return products_->run(*prepared.product, stream_);
    const LoadedKernel& kernel = kernels_->at(prepared.dispatch.kernel);
    void* parameters[] = {prepared.push.data(), prepared.params.data()};
    const auto& groups = prepared.dispatch.groups;
    check(driver().LaunchKernel(kernel.function, groups[0], groups[1], groups[2], kernel.threads, 1, 1, 0, stream_,
                                static_cast<void**>(parameters), nullptr));
}

void Call::give_up() noexcept {
    if (memory_->is_foreign()) return;
    try {
        const std::lock_guard lock(memory_->mutex());
        mark_used();
    } catch (const DriverError&) {  // the call's own error is reported instead
    }
}

void Call::mark_used() {
    for (CudaStorage* storage : written_) storage->changed();
    for (CudaStorage* storage : used_) storage->last_use().after(stream_);
    for (const auto& copy : packed_) copy->piece.last_use().after(stream_);
}

void Call::finish() {
    const std::lock_guard lock(memory_->mutex());
    mark_used();
    for (Made& each : made_) static_cast<void>(each.of->copies().keep(std::move(each.key), std::move(each.copy)));
}

}  // namespace vkrnn::cuda
