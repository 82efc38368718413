// The recurrent products of a step by kernels of the broadcast flavour, left in slabs that the step's kernel adds up.
#pragma once

#include <vector>

#include "broadcast.h"

namespace vkrnn {

class SlabProducts {
public:
    // Of the weights of `gates` gates from `first` on, as a plan of gradients multiplies them or as one forward does;
    // n and k are at least what that takes, and the rest of the packed weights is zero.
    struct Shape {
        std::int64_t first, gates;
        std::int64_t n, k;
    };
    SlabProducts(PlanBuilder& builder, std::size_t weights, const Shape& shape);

    // [D, slabs, N, n]
    [[nodiscard]] std::size_t buffer() const { return out_; }
    [[nodiscard]] std::int64_t slabs() const { return slabs_; }
    [[nodiscard]] std::int64_t n() const { return shape_.n; }

    // Of rows of k elements that begin `lda` elements apart.
    [[nodiscard]] StepProduct product(std::int64_t direction, Place a, std::int64_t lda) const;

private:
    const PlanBuilder& builder_;
    Shape shape_;
    std::int64_t slabs_ = 0;
    std::size_t out_ = 0;
    std::vector<Panels> panels_;  // of each direction
};

}  // namespace vkrnn
