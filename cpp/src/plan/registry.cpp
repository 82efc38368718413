// Lists the strategies of each back end. To add one, add its include and its name here.
#include <array>
#include <tuple>

#include "cublas/cublas_products.h"
#include "matrices/matrix_loop.h"
#include "matrices/matrix_products.h"
#include "matrices/persistent_loop.h"
#include "native/native_plan.h"
#include "portable/portable_products.h"
#include "portable/step_loop.h"
#include "slices/slice_loop.h"
#include "split/split_loop.h"
#include "strategy.h"
#include "tiles/tile_loop.h"

namespace vkrnn {
namespace {

template <class Part, class... Strategies>
std::span<const Part* const> instances() {
    static constexpr std::tuple<Strategies...> strategies;
    static constexpr std::array<const Part*, sizeof...(Strategies)> all{&std::get<Strategies>(strategies)...};
    return all;
}

}  // namespace

std::span<const LoopStrategy* const> loop_strategies(Backend backend) {
    switch (backend) {
        case Backend::vulkan:
        case Backend::cuda:
            return instances<LoopStrategy, StepLoop, TileLoop, SliceLoop, MatrixLoop, PersistentLoop, SplitLoop>();
        case Backend::native: return instances<LoopStrategy, NativeLoop>();
    }
    return {};
}

std::span<const ProductStrategy* const> product_strategies(Backend backend) {
    switch (backend) {
        case Backend::vulkan: return instances<ProductStrategy, RegisterProducts, TiledProducts, MatrixProducts>();
        case Backend::cuda:
            return instances<ProductStrategy, RegisterProducts, TiledProducts, MatrixProducts, CublasProducts>();
        case Backend::native: return instances<ProductStrategy, NativeProducts>();
    }
    return {};
}

}  // namespace vkrnn
