// Binds the buffers of a plan to memory for the duration of one call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "run/call_buffers.h"
#include "vk/commands/recorder.h"
#include "vk/commands/transfer.h"
#include "vk/memory/arena.h"
#include "vk/memory/storage.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

// The pools in which a device's arrays are allocated, and what all calls share.
struct Pools {
    std::shared_ptr<Pool> device;
    std::shared_ptr<Pool> results;  // host memory that the device writes; used if the host cannot see `device`
    Slice failed_waits;             // the word of that role

    // Casts to PoolStorage. Throws std::invalid_argument if the storage belongs to another device.
    [[nodiscard]] PoolStorage& own(const Storage& storage) const;
};

class Binding {
public:
    // `host_waits`: the caller waits for the call, so the device may read host memory in place.
    Binding(Pools pools, Workers& workers, const Plan& plan, bool host_waits);
    // Returns the temporary memory to the pools.
    ~Binding();
    Binding(const Binding&) = delete;
    Binding& operator=(const Binding&) = delete;

    // Finds existing prepacked copies of the call's arrays and allocates memory for missing ones, and decides which
    // scratch buffers share memory. Call this first. Throws std::logic_error if the operands do not fit the plan.
    void find_prepacked(std::span<const InputLocation> inputs, std::span<const ResultLocation> results);

    // Returns the bytes that the call allocates in addition to arrays on the device and their prepacked copies.
    [[nodiscard]] std::uint64_t temporary_bytes(std::span<const InputLocation> inputs,
                                                std::span<const ResultLocation> results) const;

    // Places all buffers except arguments, results and prepacked copies of arrays in the arena. This invalidates the
    // scratch memory of earlier calls. Waits for the device if the arena has to grow. Throws vk::SystemError.
    void place_scratch(Arena& arena);

    // Binds every input and result. Inputs in host memory that the device cannot read in place are copied: directly if
    // the host can map device memory, else through the transfer. Throws vk::SystemError, and what Transfer::upload
    // throws.
    void bind(std::span<const InputLocation> inputs, std::span<const ResultLocation> results, Transfer& transfer,
              const Poll& poll);

    // Arguments of Recorder::run: the slice of each plan buffer, the prepacked buffers filled by earlier calls, and the
    // copies before and after the plan's steps.
    [[nodiscard]] std::span<const Slice> placements() const { return placements_; }
    [[nodiscard]] std::span<const std::size_t> full() const { return buffers_.full(); }
    [[nodiscard]] std::span<const SliceCopy> before() const { return before_; }
    [[nodiscard]] std::span<const SliceCopy> after() const { return after_; }

    // Returns the point of the upload timeline at which all arrays of the call have been uploaded.
    [[nodiscard]] Point arrays_uploaded() const;

    // Records that the call was submitted and is done at this point of the timeline. Stores new prepacked copies with
    // their arrays.
    void submitted(Point point);

    // Call these once the call is done. fetch() copies results from memory that the host can map. Large results may be
    // in other memory: has_downloads() returns whether there are any, and download() copies them. It throws what
    // Transfer::download throws.
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
    void use_until(Point point);
    Slice temporary(std::uint64_t bytes, bool idle);
    Slice bind_host_result(void* to, std::uint64_t bytes);
    Slice bind_host(const void* data, std::uint64_t bytes, Transfer& transfer, const Poll& poll);
    bool import(const void* data, std::uint64_t bytes, Slice& slice);

    const Pools pools_;
    Workers& workers_;
    const Plan& plan_;
    bool host_waits_;
    const long process_;
    Point point_ = 0;
    std::vector<Slice> placements_;
    CallBuffers<PoolStorage, PrepackedCopy> buffers_;
    std::vector<SliceCopy> before_, after_;
    std::vector<Download> fetches_, downloads_;
    Pool::Pieces temporaries_, fetched_;
    std::vector<Allocation> imports_;
    std::vector<PoolStorage*> read_, written_;  // the caller keeps them alive
    std::uint64_t uploaded_ = 0, imported_ = 0, downloaded_ = 0;
};

}  // namespace vkrnn::vk
