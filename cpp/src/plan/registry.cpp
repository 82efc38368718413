// The list of strategies. A new one is an include and a name here.
#include <array>
#include <tuple>

#include "matrices/matrix_loop.h"
#include "matrices/matrix_products.h"
#include "matrices/persistent_loop.h"
#include "native/native_plan.h"
#include "portable/products.h"
#include "portable/step_loop.h"
#include "slices/slice_loop.h"
#include "strategy.h"
#include "tiles/tile_loop.h"

namespace vkrnn {
namespace {

template <class Part, class... Strategies>
std::span<const Part* const> instances() {
    static const std::tuple<Strategies...> strategies;
    static const std::array<const Part*, sizeof...(Strategies)> all{&std::get<Strategies>(strategies)...};
    return all;
}

}  // namespace

std::span<const LoopStrategy* const> loop_strategies() {
    return instances<LoopStrategy, NativeLoop, StepLoop, TileLoop, SliceLoop, MatrixLoop, PersistentLoop>();
}

std::span<const ProductStrategy* const> product_strategies() {
    return instances<ProductStrategy, NativeProducts, RegisterProducts, TiledProducts, MatrixProducts>();
}

}  // namespace vkrnn
