// The recurrent products of a step by kernels of the broadcast flavour, left in slabs that the step's kernel adds up.
#pragma once

#include <vector>

#include "broadcast.h"
#include "time_loop.h"

namespace vkrnn {

// Of rows of k elements, to n sums, with the weights of a phase, as a plan of gradients multiplies them or as one
// forward does.
struct ProductShape {
    Phase phase;
    std::int64_t n, k;
};
ProductShape shape_of(const Spec& spec, const Phase& phase);

class SlabProducts {
public:
    // n and k may be more than shape_of() says; the rest of the packed weights is zero.
    SlabProducts(PlanBuilder& builder, std::size_t weights, const ProductShape& shape);

    // [D, slabs, N, n]
    [[nodiscard]] std::size_t buffer() const { return out_; }
    [[nodiscard]] std::int64_t slabs() const { return slabs_; }
    [[nodiscard]] std::int64_t n() const { return shape_.n; }

    // Of rows of k elements that begin `lda` elements apart.
    [[nodiscard]] StepProduct product(std::int64_t direction, Place a, std::int64_t lda) const;

private:
    const PlanBuilder& builder_;
    ProductShape shape_;
    std::int64_t slabs_ = 0;
    std::size_t out_ = 0;
    std::vector<Panels> panels_;  // of each direction
};

}  // namespace vkrnn
