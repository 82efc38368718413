#include "vk/run/binding.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/abandon.h"

namespace vkrnn::vk {
namespace {

// Smaller arrays are copied, which is faster than importing them.
constexpr std::uint64_t kSmallestImport = 256 << 10;
// Larger results are copied to the host in parts, after the call.
constexpr std::uint64_t kLargestFetch = 1 << 20;

}  // namespace

PoolStorage& Pools::own(const Storage& storage) const {
    const auto* found = dynamic_cast<const PoolStorage*>(&storage);
    if (found == nullptr || (&found->pool() != device.get() && &found->pool() != results.get())) {
        throw std::invalid_argument("storage of another device");
    }
    return const_cast<PoolStorage&>(*found);  // NOLINT(cppcoreguidelines-pro-type-const-cast): only its points change
}

Binding::Binding(Pools pools, Workers& workers, const Plan& plan, bool host_waits)
    : pools_(std::move(pools)),
      workers_(workers),
      plan_(plan),
      host_waits_(host_waits),
      process_(system::process_id()),
      placements_(plan.buffers.size()),
      buffers_(plan) {
    for (std::size_t i = 0; i < plan.buffers.size(); ++i)
        if (plan.buffers[i].role == Role::failed_waits) placements_[i] = pools_.failed_waits;
}

Binding::~Binding() {
    if (process_ != system::process_id()) {
        // A child forked by the call's poll must not use the driver, so the driver's objects leak.
        abandon(std::move(imports_));
        abandon(std::move(buffers_));
        return;
    }
    const Timeline& timeline = pools_.device->timeline();
    if (point_ == 0) {
        use_until(timeline.submitted());  // the call failed half-way, and its commands may still run
    }
    if (!imports_.empty()) {
        timeline.settle(point_);
    }
    pools_.device->give_back(std::move(temporaries_), point_);
    pools_.results->give_back(std::move(fetched_), point_);
}

void Binding::find_prepacked(std::span<const InputLocation> inputs, std::span<const ResultLocation> results) {
    check_operands(plan_, inputs, results);
    buffers_.find_prepacked(inputs);
    buffers_.make_prepacked([&](std::uint64_t bytes, std::uint64_t version) {
        return std::make_shared<const PrepackedCopy>(pools_.device, bytes, version);
    });
    for (const auto& each : buffers_.prepacked()) {
        placements_[each.buffer] = each.copy->slice().part(0, plan_.buffers[each.buffer].bytes);
    }
    const std::uint64_t limit = pools_.device->timeline().device()->profile().max_allocation;
    buffers_.lay_out(kAlignment, limit / kAlignment * kAlignment, [](std::size_t /*buffer*/) { return false; });
}

void Binding::submitted(Point point) {
    use_until(point);
    static_cast<void>(buffers_.keep_prepacked());  // destroying the dropped copies returns their memory to the pool
}

std::uint64_t Binding::temporary_bytes(std::span<const InputLocation> inputs,
                                       std::span<const ResultLocation> results) const {
    std::vector<std::uint64_t> sizes = buffers_.layout().pieces;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].storage) {
            sizes.push_back(plan_.buffers[plan_.inputs[i].second].bytes);
        }
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
        if (!results[i].storage) {
            sizes.push_back(plan_.buffers[plan_.results[i]].bytes);
        }
    }
    return placed_bytes(sizes);
}

void Binding::place_scratch(Arena& arena) {
    const ScratchLayout& layout = buffers_.layout();
    if (!arena.fits(layout.pieces)) {
        pools_.device->timeline().settle(pools_.device->timeline().submitted());
    }
    std::vector<Slice> pieces;
    arena.place(layout.pieces, pieces);
    for (std::size_t i = 0; i < layout.spots.size(); ++i) {
        const std::size_t buffer = buffers_.scratch()[i];
        placements_[buffer] = pieces[layout.spots[i].piece].part(layout.spots[i].offset, plan_.buffers[buffer].bytes);
    }
}

void Binding::bind(std::span<const InputLocation> inputs, std::span<const ResultLocation> results, Transfer& transfer,
                   const Poll& poll) {
    // Kernels load and store four elements at a time.
    const std::uint64_t alignment = 4 * storage_bytes(plan_.spec.dtype);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::uint64_t bytes = plan_.buffers[plan_.inputs[i].second].bytes;
        Slice& placement = placements_[plan_.inputs[i].second];
        if (!inputs[i].storage) {
            placement = bind_host(inputs[i].host, bytes, transfer, poll);
            continue;
        }
        read_.push_back(&pools_.own(*inputs[i].storage));
        placement = read_.back()->slice().part(inputs[i].offset, bytes);
        if (placement.address == 0 || !suits_kernels(placement.address, alignment)) {
            const Slice aligned = temporary(bytes, false);
            before_.push_back({placement, aligned});
            placement = aligned;
        }
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
        const std::uint64_t bytes = plan_.buffers[plan_.results[i]].bytes;
        Slice& placement = placements_[plan_.results[i]];
        if (!results[i].storage) {
            if (!host_waits_) {
                throw std::invalid_argument("a call that does not wait cannot write a result to host memory");
            }
            placement = bind_host_result(results[i].host, bytes);
            continue;
        }
        written_.push_back(&pools_.own(*results[i].storage));
        placement = written_.back()->slice().part(results[i].offset, bytes);
        if (placement.address == 0) {  // memory of the host
            downloaded_ += bytes;
        }
        if (placement.address == 0 || !suits_kernels(placement.address, alignment, bytes)) {
            const Slice aligned = temporary(bytes, false);
            after_.push_back({aligned, placement});
            placement = aligned;
        }
    }
}

Slice Binding::temporary(std::uint64_t bytes, bool idle) {
    temporaries_.splice(temporaries_.begin(), pools_.device->take(bytes, idle));
    return temporaries_.front().slice.part(0, bytes);
}

Slice Binding::bind_host(const void* data, std::uint64_t bytes, Transfer& transfer, const Poll& poll) {
    Slice slice;
    if (import(data, bytes, slice)) {
        imported_ += bytes;
        return slice;
    }
    uploaded_ += bytes;
    const bool mapped = pools_.device->timeline().device()->unified_memory();
    slice = temporary(bytes, mapped);
    if (mapped) {
        workers_.copy(slice.host, data, bytes);
    } else {
        transfer.upload(slice, data, poll);
    }
    return slice;
}

Slice Binding::bind_host_result(void* to, std::uint64_t bytes) {
    downloaded_ += bytes;
    const Slice slice = temporary(bytes, false);
    if (slice.host != nullptr) {
        fetches_.push_back({to, slice});
    } else if (bytes <= kLargestFetch) {
        fetched_.splice(fetched_.begin(), pools_.results->take(bytes, false));
        const Slice visible = fetched_.front().slice.part(0, bytes);
        after_.push_back({slice, visible});
        fetches_.push_back({to, visible});
    } else {
        downloads_.push_back({to, slice});
    }
    return slice;
}

bool Binding::import(const void* data, std::uint64_t bytes, Slice& slice) {
    const LogicalDevice& device = *pools_.device->timeline().device();
    const std::uint64_t vector = 4 * compute_bytes(plan_.spec.dtype);  // kernels load four elements at a time
    if (!host_waits_ || device.host_import_alignment() == 0 || bytes < kSmallestImport || !is_aligned(data, vector)) {
        return false;
    }
    try {
        imports_.push_back(import_host(device, data, bytes));
    } catch (const ::vk::SystemError&) {
        return false;  // the driver rejects the memory, for example a file mapped for reading
    }
    slice = imports_.back().whole;
    return true;
}

Point Binding::arrays_uploaded() const {
    Point latest = 0;
    for (const auto& storages : {read_, written_}) {
        for (const PoolStorage* storage : storages) {
            latest = std::max(latest, storage->uploaded());
        }
    }
    return latest;
}

void Binding::use_until(Point point) {
    point_ = point;
    for (PoolStorage* storage : read_) {
        storage->use(point);
    }
    for (PoolStorage* storage : written_) {
        storage->write(point);
    }
    for (const auto& each : buffers_.prepacked()) {
        each.copy->use(point);
    }
}

void Binding::fetch() {
    for (const Download& each : fetches_) {
        workers_.copy(each.to, each.from.host, each.from.bytes);
    }
}

void Binding::download(Transfer& transfer, const Poll& poll) {
    try {
        for (const Download& each : downloads_) {
            transfer.download(each.to, each.from, poll);
        }
    } catch (...) {
        point_ = pools_.device->timeline().submitted();  // a part may be in flight
        throw;
    }
}

}  // namespace vkrnn::vk
