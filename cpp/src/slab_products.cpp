#include "slab_products.h"

namespace vkrnn {

ProductShape shape_of(const Spec& spec, const Phase& phase) {
    const std::int64_t several = phase.slots * spec.H;
    return {phase, spec.gradients ? spec.H : several, spec.gradients ? several : spec.H};
}

SlabProducts::SlabProducts(PlanBuilder& builder, std::size_t weights, const ProductShape& shape)
    : builder_(builder), shape_(shape), slabs_(step_slabs(builder, builder.spec().N, shape.n, shape.k)) {
    const Spec& spec = builder.spec();
    const ProductShape exact = shape_of(spec, shape.phase);
    out_ = builder.scratch("recurrent products", spec.D() * slabs_ * spec.N * shape.n);
    for (std::int64_t d = 0; d < spec.D(); ++d) {
        const Matrix matrix{weights, (d * spec.G() + shape.phase.first) * spec.H * spec.H, spec.H, 0, spec.gradients};
        panels_.push_back(pack_panels(builder, "recurrent weight", matrix, exact.n, exact.k, shape.k, true));
    }
}

StepProduct SlabProducts::product(std::int64_t direction, Place a, std::int64_t lda) const {
    StepProduct product;
    product.rows = builder_.spec().N;
    product.n = shape_.n;
    product.k = shape_.k;
    product.a = a;
    product.lda = lda;
    product.b = panels_[static_cast<std::size_t>(direction)];
    product.out = builder_.at(out_, direction * slabs_ * builder_.spec().N * shape_.n);
    return product;
}

}  // namespace vkrnn
