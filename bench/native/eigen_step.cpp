#include "eigen_step.h"

#include <Eigen/Dense>

namespace bench {
namespace {

template <int Rows, int Columns>
using Matrix = Eigen::Matrix<float, Rows, Columns>;
template <int Rows>
using Vector = Eigen::Matrix<float, Rows, 1>;

template <class Values>
auto sigmoid(const Values& x) {
    return (1.0F + (-x.array()).exp()).inverse();
}

// The weights [W | R | b] in one matrix, which multiplies [x, h, 1].
template <int I, int H>
class Lstm final : public Step {
public:
    explicit Lstm(const Weights& from) {
        for (int row = 0; row < 4 * H; ++row) {
            for (int k = 0; k < I; ++k) weights_(row, k) = from.input[static_cast<std::size_t>(row * I + k)];
            for (int k = 0; k < H; ++k) weights_(row, I + k) = from.recurrent[static_cast<std::size_t>(row * H + k)];
            weights_(row, I + H) = from.bias[static_cast<std::size_t>(row)];
        }
        Lstm::reset();
    }

    void reset() override {
        operand_.setZero();
        operand_(I + H) = 1;
        cell_.setZero();
    }

    void run(const float* input, float* output, int steps) override {
        for (int t = 0; t < steps; ++t) step(input + t * I, output + t * H);
    }

private:
    EIGEN_MAKE_ALIGNED_OPERATOR_NEW
    __attribute__((noinline)) void step(const float* input, float* output) {
        operand_.template head<I>() = Eigen::Map<const Vector<I>>(input);
        gates_.noalias() = weights_ * operand_;
        const auto i = sigmoid(gates_.template segment<H>(0)), f = sigmoid(gates_.template segment<H>(H));
        const auto z = gates_.template segment<H>(2 * H).array().tanh();
        const auto o = sigmoid(gates_.template segment<H>(3 * H));
        cell_.array() = f * cell_.array() + i * z;
        operand_.template segment<H>(I).array() = o * cell_.array().tanh();
        Eigen::Map<Vector<H>>(output, H) = operand_.template segment<H>(I);
    }

    Matrix<4 * H, I + H + 1> weights_;
    Vector<I + H + 1> operand_;
    Vector<4 * H> gates_;
    Vector<H> cell_;
};

// Gates z, r, o with the reset after the product: o = tanh(x W_o + b_o + r (h R_o + b2)).
template <int I, int H>
class Gru final : public Step {
public:
    explicit Gru(const Weights& from) {
        for (int row = 0; row < 3 * H; ++row) {
            for (int k = 0; k < I; ++k) input_weights_(row, k) = from.input[static_cast<std::size_t>(row * I + k)];
            input_weights_(row, I) = from.bias[static_cast<std::size_t>(row)];
            for (int k = 0; k < H; ++k) weights_(row, k) = from.recurrent[static_cast<std::size_t>(row * H + k)];
            weights_(row, H) = row < 2 * H ? 0 : from.recurrent_bias[static_cast<std::size_t>(row - 2 * H)];
        }
        Gru::reset();
    }

    void reset() override {
        features_.setOnes();
        hidden_.setZero();
        hidden_(H) = 1;
    }

    void run(const float* input, float* output, int steps) override {
        for (int t = 0; t < steps; ++t) step(input + t * I, output + t * H);
    }

private:
    EIGEN_MAKE_ALIGNED_OPERATOR_NEW
    __attribute__((noinline)) void step(const float* input, float* output) {
        features_.template head<I>() = Eigen::Map<const Vector<I>>(input);
        outside_.noalias() = input_weights_ * features_;
        inside_.noalias() = weights_ * hidden_;
        update_ = sigmoid(outside_.template segment<H>(0) + inside_.template segment<H>(0));
        reset_ = sigmoid(outside_.template segment<H>(H) + inside_.template segment<H>(H));
        reset_ =
            (outside_.template segment<H>(2 * H).array() + reset_ * inside_.template segment<H>(2 * H).array()).tanh();
        hidden_.template head<H>().array() = update_ * hidden_.template head<H>().array() + (1.0F - update_) * reset_;
        Eigen::Map<Vector<H>>(output, H) = hidden_.template head<H>();
    }

    Matrix<3 * H, I + 1> input_weights_;
    Matrix<3 * H, H + 1> weights_;
    Vector<I + 1> features_;
    Vector<H + 1> hidden_;
    Vector<3 * H> outside_, inside_;
    Eigen::Array<float, H, 1> update_, reset_;
};

template <template <int, int> class Layer, int I, int H>
std::unique_ptr<Step> make_if(const Weights& weights) {
    if (weights.inputs != I || weights.units != H) return nullptr;
    return std::make_unique<Layer<I, H>>(weights);
}

template <template <int, int> class Layer>
std::unique_ptr<Step> make(const Weights& weights) {
    std::unique_ptr<Step> made;
    const auto found = [&](std::unique_ptr<Step> step) { return (made = std::move(step)) != nullptr; };
    (void)(found(make_if<Layer, 1, 16>(weights)) || found(make_if<Layer, 1, 24>(weights)) ||
           found(make_if<Layer, 24, 24>(weights)) || found(make_if<Layer, 1, 64>(weights)) ||
           found(make_if<Layer, 64, 64>(weights)) || found(make_if<Layer, 96, 96>(weights)) ||
           found(make_if<Layer, 128, 128>(weights)) || found(make_if<Layer, 256, 256>(weights)));
    return made;
}

}  // namespace

std::unique_ptr<Step> make_eigen_lstm(const Weights& weights) { return make<Lstm>(weights); }
std::unique_ptr<Step> make_eigen_gru(const Weights& weights) { return make<Gru>(weights); }

}  // namespace bench
