// What the choice between wavefronts and one layer after the other needs besides the estimates of single calls.
#pragma once

namespace vkrnn {

struct LaneCosts {
    // Of each dispatch of a piece: what it waits for launches and for other lanes.
    double forward_dispatch, backward_dispatch;
    // Of each dispatch before and after the loops. Those of lanes run beside each other.
    double other_dispatch;
    // The measured time of a loop over its estimate. Estimates are fitted to find the fastest of a call's strategies,
    // but here the times of different calls compare. Of the loop `persistent`: `kept` if its weights stay in registers,
    // `loading` if not. Of `matrices`: as lanes, whose dispatches hold each other up.
    struct Ratios {
        double kept, loading, slices, matrices;
    } forward, backward;
    double most_time;  // a wavefront is chosen if it takes at most this part of the time of one layer after the other
};

}  // namespace vkrnn
