// One backward time step for all units, batch rows and directions: first the recurrent product, which is the gradient
// that comes from the later step, then the cell's own gradient. Step -1 only takes this gradient from step 0: it is the
// gradient of the initial state.
#define BACKWARD
#include "portable/product.glsl"

void main() {
    Params p = Params(push.params);
    uint H = params_of(p).H, N = params_of(p).N;
    int k = push.step;
    Position at = position(H, N);
    uint unit = min(at.unit, H - 1);

    // The weights are transposed: row j has the weights by which unit j enters the gates, of unit j of each head. The
    // last step has no later one to take a gradient from.
    Stride weight_rows[1] = {Stride(unit - first_of_head(p, unit)) * params_of(p).weights_row};
    Real sums[rows][1];
    if (phase == 2 || k + 1 < int(params_of(p).T))
        product(p, at, Operand(kRecurrentDelta, phase == 2 ? k : k + 1, false, 0), weight_rows, sums);
    else
        for (uint r = 0; r < rows; ++r) sums[r][0] = 0.0f;

    for (uint first = 0; first < rows; first += lanes) {
        Real through = sums[first][0];
        for (uint i = 1; i < min(lanes, rows - first); ++i)
            if (at.lane == i) through = sums[first + i][0];
        uint n = at.row + first + at.lane;
        if (at.lane < rows - first && n < N && at.unit < H) {
            Element e = Element(at.direction, n, unit, k);
            store_cell(p, e, form_cell(p, e, fetch_cell(p, e), through));
        }
    }
}
