// One execution of a plan on a CUDA device: the memory of its buffers, and the launches.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cuda/kernels/cublaslt_products.h"
#include "cuda/kernels/modules.h"
#include "cuda/memory/cuda_memory.h"
#include "cuda/run/side_streams.h"
#include "run/call_buffers.h"
#include "vkrnn/cuda.h"
#include "vkrnn/device.h"

namespace vkrnn::cuda {

// Casts to CudaStorage. Throws std::invalid_argument if the storage belongs to another device.
CudaStorage& own(const Memory& memory, const Storage& storage);

class Execution {
public:
    // The context must be current as long as the object lives. If `allocate` is not null, temporary memory comes from
    // it, and belongs to whoever gave it.
    Execution(std::shared_ptr<Memory> memory, const Plan& plan, Stream stream, const CudaAllocator* allocate,
              SideStreams& side_streams);
    // Frees temporary memory that comes from `memory`, in the stream's order.
    ~Execution();
    Execution(const Execution&) = delete;
    Execution& operator=(const Execution&) = delete;

    // Places all buffers and copies the inputs that are in host memory or not aligned. Throws DriverError, and
    // std::logic_error if the operands do not fit the plan.
    void bind(std::span<const InputLocation> inputs, std::span<const ResultLocation> results);

    // Returns the bytes that the call allocates in addition to arrays and their prepacked copies. Call it after bind().
    [[nodiscard]] std::uint64_t temporary_bytes() const { return temporary_bytes_; }

    // Launches the kernels, and the products of cuBLASLt. Throws DriverError and LibraryError.
    void launch(const std::vector<LoadedKernel>& kernels, Products& products, const Poll& poll);

    // Copies results that are in host memory or not aligned to where they belong. The driver may wait for the kernels
    // if there are any in host memory.
    [[nodiscard]] bool has_host_results() const;
    void copy_results();

    // Call finish() when everything is launched: it stores new prepacked copies with their arrays, and marks results as
    // changed. Call give_up() instead after a failure.
    void finish();
    void give_up() noexcept;

    [[nodiscard]] std::uint64_t launched() const { return launched_; }
    [[nodiscard]] std::uint64_t uploaded() const { return uploaded_; }      // bytes
    [[nodiscard]] std::uint64_t downloaded() const { return downloaded_; }  // bytes

private:
    // An operand in host memory, or not aligned for kernels, and the buffer that it is copied to or from.
    template <class Byte>
    struct Copied {
        Byte* host;
        Address at;  // 0 in host memory
        std::size_t buffer;
    };

    void mark_used();
    [[nodiscard]] Address allocate(std::uint64_t bytes) const;
    void place_rest(std::span<const InputLocation> inputs, std::span<const ResultLocation> results);
    void copy_inputs();
    CudaStorage& use(const Storage& storage);
    // Clears buffers. Those that lie beside each other take one command.
    void clear(std::span<const Step> clears);
    void step(const Dispatch& dispatch);
    void step(const Loop& loop);
    void step(const Branches& branches);
    void step(const Wavefront& wavefront);
    void run(const Sequence& sequence);
    // Returns whether some branches have so much work that it is worth a stream.
    [[nodiscard]] bool gains(const Branches& branches) const;
    // A dispatch and its parameters with addresses: push constants, and those of a time loop.
    struct Launch {
        const Dispatch& dispatch;
        std::vector<std::uint64_t> push, params;
        std::optional<Products::Bound> product;  // if it is one of cuBLASLt
    };
    [[nodiscard]] Launch prepare(const Dispatch& dispatch);
    void launch(Launch& prepared);

    const std::shared_ptr<Memory> memory_;
    const Plan& plan_;
    const Stream stream_;
    Stream current_ = stream_;  // where steps are launched: the lane's stream in a wavefront
    SideStreams& side_streams_;
    const CudaAllocator* const allocate_;
    const Poll* poll_ = nullptr;
    const std::vector<LoadedKernel>* kernels_ = nullptr;
    Products* products_ = nullptr;
    std::vector<Address> placements_;  // of each buffer
    CallBuffers<CudaStorage, PrepackedCopy> buffers_;
    std::vector<CudaStorage*> used_, written_;  // the caller keeps them alive
    std::vector<Copied<const void>> before_;    // inputs
    std::vector<Copied<void>> after_;           // results
    Address temporary_ = 0;
    std::uint64_t temporary_bytes_ = 0, launched_ = 0, uploaded_ = 0, downloaded_ = 0;
};

}  // namespace vkrnn::cuda
