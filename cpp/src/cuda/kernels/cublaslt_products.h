// Matrix products that cuBLASLt computes for a device.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "cuda/libraries/cublas.h"
#include "plan/library_product.h"

namespace vkrnn::cuda {

// Thread-safe. The context must be current in all functions.
class Products {
public:
    Products();
    ~Products();
    Products(const Products&) = delete;
    Products& operator=(const Products&) = delete;

    // cuBLASLt's description of products of one shape, with its algorithm. It lives no longer than the object that made
    // it.
    struct Matmul;
    struct Bound {
        const Matmul* product;
        LibraryProduct work;
    };

    // Chooses the algorithm of a product. `work` is a LibraryProduct with addresses in place of its buffer references.
    // Equal kernels and shapes get the same algorithm, and so the same bits, as long as the object lives and in every
    // process with the same library and GPU. Throws LibraryError; DriverError if memory runs out.
    [[nodiscard]] Bound bind(const Kernel& kernel, std::span<const std::byte> bytes);

    // Computes a product on a stream. Throws as bind() does.
    void run(const Bound& bound, Stream stream) const;

private:
    struct Layout;
    const Matmul& matmul(const Kernel& kernel, const LibraryProduct& work);

    ForkSafeMutex mutex_{ForkSafeMutex::Kind::driver};  // guards the members below
    cublas::Handle handle_{};
    // By constants, and by the bytes of a LibraryProduct without its addresses.
    using Key = std::pair<std::vector<std::uint32_t>, std::vector<std::byte>>;
    std::map<Key, std::unique_ptr<const Matmul>> matmuls_;
};

}  // namespace vkrnn::cuda
