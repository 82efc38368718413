// Which memory each buffer of a plan is in during one call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vk/commands/recorder.h"
#include "vk/commands/transfer.h"
#include "vk/memory/arena.h"
#include "vk/memory/storage.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

// The memory of a device that arrays are in.
struct Pools {
    std::shared_ptr<Pool> device;
    std::shared_ptr<Pool> results;  // of the host, for the device to write; without it where the host sees the former

    // The storage as this layer made it. Throws std::invalid_argument where it belongs to another device.
    [[nodiscard]] PoolStorage& own(const Storage& storage) const;
};

class Binding {
public:
    // `host_waits`: the host's memory stays as it is until the call is done.
    Binding(Pools pools, Workers& workers, const Plan& plan, bool host_waits);
    // Gives back what was taken for the call.
    ~Binding();
    Binding(const Binding&) = delete;
    Binding& operator=(const Binding&) = delete;

    // What the call takes besides the arrays that are on the device already.
    [[nodiscard]] std::uint64_t temporary_bytes(std::span<const InputOperand> inputs,
                                                std::span<const ResultOperand> results) const;

    // What the call computes in; other calls' scratch becomes void. The device must be done with it where it does not
    // fit. Throws vk::SystemError.
    void place_scratch(Arena& arena);

    // Binds every input and result. What is in host memory that the device does not read in place is copied at once
    // where the host sees the device's memory, else by the transfer. Throws vk::SystemError, like Transfer::upload, and
    // std::logic_error where the operands do not go with the plan.
    void bind(std::span<const InputOperand> inputs, std::span<const ResultOperand> results, Transfer& transfer,
              const Poll& poll);

    // What the recorder wants, of the plan's buffers.
    [[nodiscard]] std::span<const Slice> placements() const { return placements_; }
    [[nodiscard]] std::span<const Copy> before() const { return before_; }
    [[nodiscard]] std::span<const Copy> after() const { return after_; }

    // When the arrays that the host filled are there, on the timeline of uploads.
    [[nodiscard]] Point arrays_uploaded() const;

    // The call was submitted and is done at the point.
    void submitted(Point point) { use_until(point); }

    // Once the call is done: copies the results that the host can see. Large ones it may not see; has_downloads() says
    // whether there are any, and download() copies them. Throws like Transfer::download.
    void fetch();
    [[nodiscard]] bool has_downloads() const { return !downloads_.empty(); }
    void download(Transfer& transfer, const Poll& poll);

    [[nodiscard]] std::uint64_t uploaded() const { return uploaded_; }      // bytes
    [[nodiscard]] std::uint64_t imported() const { return imported_; }      // bytes
    [[nodiscard]] std::uint64_t downloaded() const { return downloaded_; }  // bytes

private:
    struct Download {
        void* to;
        Slice from;
    };
    [[nodiscard]] const PlanBuffer& buffer(std::size_t index, Role role) const;
    [[nodiscard]] bool in_arena(std::size_t buffer) const;
    void use_until(Point point);
    Slice temporary(std::uint64_t bytes, bool idle);
    Slice bind_host_result(void* to, std::uint64_t bytes);
    Slice bind_host(const void* data, std::uint64_t bytes, Transfer& transfer, const Poll& poll);
    bool import(const void* data, std::uint64_t bytes, Slice& slice);
    Slice slice_of(const std::shared_ptr<Storage>& storage, std::uint64_t offset, std::uint64_t bytes);

    const Pools pools_;
    Workers& workers_;
    const Plan& plan_;
    bool host_waits_;
    Point point_ = 0;
    std::vector<Slice> placements_;
    std::vector<Copy> before_, after_;
    std::vector<Download> fetches_, downloads_;
    Pool::Pieces temporaries_, fetched_;
    std::vector<Allocation> imports_;
    std::vector<PoolStorage*> read_, written_;  // the caller holds them
    std::uint64_t uploaded_ = 0, imported_ = 0, downloaded_ = 0;
};

}  // namespace vkrnn::vk
