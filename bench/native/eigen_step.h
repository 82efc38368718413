// One step of an LSTM or GRU written with Eigen for sizes known at compile time, as RTNeural writes it. The baseline of
// bench.step.
#pragma once

#include <memory>
#include <vector>

namespace bench {

struct Weights {
    int inputs, units;
    std::vector<float> input, recurrent, bias, recurrent_bias;  // [G H, I], [G H, H], [G H], [H] of a GRU
};

class Step {
public:
    virtual ~Step() = default;
    virtual void run(const float* input, float* output, int steps) = 0;  // [steps, I] -> [steps, H], one by one
    virtual void reset() = 0;
};

// Null for sizes that are not compiled in.
std::unique_ptr<Step> make_eigen_lstm(const Weights& weights);
std::unique_ptr<Step> make_eigen_gru(const Weights& weights);

}  // namespace bench
