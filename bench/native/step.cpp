// Measures a step of a vkrnn::Stream, a step of a block, and one written with Eigen. bench.step runs this program.
// Each line of output is a JSON object: cell, I, H, contender, seconds a step (least, median, p10, p90), samples,
// error.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "eigen_step.h"
#include "vkrnn/stream.h"

namespace {

using namespace vkrnn;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 1024;  // length of the sequence, which is also the block

class Numbers {
public:
    std::vector<float> vector(std::size_t count, float scale) {
        std::vector<float> made(count);
        for (float& each : made) {
            state_ = state_ * 6364136223846793005U + 1442695040888963407U;
            each = scale * (static_cast<float>(state_ >> 40) / static_cast<float>(1U << 23) - 1.0F);
        }
        return made;
    }

private:
    std::uint64_t state_ = 1;
};

struct Contender {
    std::string name;
    std::function<void(float* output)> run;  // the whole sequence, from a zero state
    std::vector<double> seconds{};           // per step
    double error = 0;
};

std::shared_ptr<Device> open_cpu() {
    const std::vector<Profile> profiles = list_devices(false);
    for (std::size_t i = 0; i < profiles.size(); ++i)
        if (profiles[i].backend == Backend::native) return Device::open(i);
    return nullptr;
}

NetworkLayer layer_of(CellKind kind, const bench::Weights& weights) {
    const std::int64_t I = weights.inputs, H = weights.units;
    const std::int64_t G = static_cast<std::int64_t>(weights.bias.size()) / H;
    NetworkLayer layer{default_descriptor(kind), {}};
    layer.descriptor.set(Flag::reset_after, kind == CellKind::gru);
    layer.weights[Argument::input_weight] = {weights.input.data(), {G * H, I}};
    layer.weights[Argument::recurrent_weight] = {weights.recurrent.data(), {G * H, H}};
    layer.weights[Argument::bias] = {weights.bias.data(), {G * H}};
    if (kind == CellKind::gru) layer.weights[Argument::secondary_bias] = {weights.recurrent_bias.data(), {H}};
    return layer;
}

// One call over the whole sequence, with weights that stay packed between calls.
std::function<void(float*)> block_of(const std::shared_ptr<Device>& device, const NetworkLayer& layer,
                                     const std::vector<float>& input) {
    Arguments arguments;
    for (const auto& [argument, tensor] : layer.weights) arguments[argument] = {"float32", tensor.shape, {}};
    const std::int64_t I = layer.weights.at(Argument::input_weight).shape[1];
    arguments[Argument::source] = {"float32", {kSteps, 1, I}, {}};
    const auto plan = device->plan(check_call(layer.descriptor, false, arguments).spec);
    std::vector<InputLocation> inputs;
    for (const auto& [argument, buffer] : plan->inputs) {
        if (argument == Argument::source) {
            inputs.push_back({input.data()});
            continue;
        }
        const std::uint64_t bytes = plan->buffers[buffer].bytes;
        inputs.push_back({nullptr, device->allocate(bytes, true)});
        device->upload({nullptr, inputs.back().storage}, layer.weights.at(argument).data, bytes, {});
    }
    return [=](float* output) {
        const ResultLocation result{output};
        device->run(plan, inputs, {&result, 1}, true, "block", {});
    };
}

void measure(std::vector<Contender>& contenders, std::size_t count, int rounds, double turn) {
    std::vector<float> output(count);
    for (int round = 0; round < rounds; ++round)
        for (Contender& contender : contenders) {
            contender.run(output.data());  // brings its data back to the caches
            const auto end = Clock::now() + std::chrono::duration<double>(turn);
            do {
                const auto start = Clock::now();
                contender.run(output.data());
                contender.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / kSteps);
            } while (Clock::now() < end);
        }
}

void print(const char* cell, const bench::Weights& weights, Contender& contender) {
    std::vector<double>& all = contender.seconds;
    std::ranges::sort(all);
    const auto at = [&](double part) {
        return all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1))];
    };
    std::printf(
        "{\"cell\": \"%s\", \"I\": %d, \"H\": %d, \"contender\": \"%s\", \"least\": %.4g, \"median\": %.4g, "
        "\"p10\": %.4g, \"p90\": %.4g, \"n\": %zu, \"error\": %.3g}\n",
        cell, weights.inputs, weights.units, contender.name.c_str(), at(0), at(0.5), at(0.1), at(0.9), all.size(),
        contender.error);
    std::fflush(stdout);
}

int measure_layer(CellKind kind, int I, int H, int rounds, double turn) {
    const bool gru = kind == CellKind::gru;
    const auto G = gru ? 3U : 4U, inputs = static_cast<unsigned>(I), units = static_cast<unsigned>(H);
    Numbers numbers;
    const float scale = 1.0F / std::sqrt(static_cast<float>(H));
    const bench::Weights weights{I,
                                 H,
                                 numbers.vector(G * units * inputs, scale),
                                 numbers.vector(G * units * units, scale),
                                 numbers.vector(G * units, scale),
                                 numbers.vector(units, scale)};
    const std::vector<float> input = numbers.vector(kSteps * inputs, 1.0F);
    const std::shared_ptr<Device> device = open_cpu();
    const NetworkLayer layer = layer_of(kind, weights);
    Stream stream(device, {&layer, 1}, {.batch = 1, .threads = 1});
    const std::unique_ptr<bench::Step> eigen = gru ? bench::make_eigen_gru(weights) : bench::make_eigen_lstm(weights);

    std::vector<Contender> contenders;
    contenders.push_back({"vkrnn::Stream", [&](float* output) {
                              stream.reset();
                              for (unsigned t = 0; t < kSteps; ++t)
                                  stream.step(std::span(input.data() + t * inputs, inputs),
                                              std::span(output + t * units, units));
                          }});
    contenders.push_back({"vkrnn::Stream, a block", [&](float* output) {
                              stream.reset();
                              stream.step(input.data(), output, kSteps);
                          }});
    contenders.push_back({"block", block_of(device, layer, input)});
    if (eigen != nullptr)
        contenders.push_back({"Eigen", [&](float* output) {
                                  eigen->reset();
                                  eigen->run(input.data(), output, kSteps);
                              }});

    std::vector<float> expected(kSteps * units), output(kSteps * units);
    contenders[2].run(expected.data());
    for (Contender& contender : contenders) {
        std::ranges::fill(output, NAN);
        contender.run(output.data());
        for (std::size_t i = 0; i < output.size(); ++i) {
            const double error = std::abs(output[i] - expected[i]);
            contender.error = std::max(contender.error, std::isfinite(error) ? error : INFINITY);
        }
        const double allowed = contender.name == "Eigen" ? 1e-4 : 0;
        if (!(contender.error <= allowed)) {
            std::fprintf(stderr, "%s I=%d H=%d: %s is off by %g\n", gru ? "gru" : "lstm", I, H, contender.name.c_str(),
                         contender.error);
            return 1;
        }
    }
    measure(contenders, output.size(), rounds, turn);
    for (Contender& contender : contenders) print(gru ? "gru" : "lstm", weights, contender);
    return 0;
}

}  // namespace

// Usage: bench_step ROUNDS SECONDS CELL I H [CELL I H ...]
int main(int count, char** values) {
    setenv("VKRNN_NUM_THREADS", "1", 1);
    if (count < 6) return 2;
    const int rounds = std::atoi(values[1]);
    const double turn = std::atof(values[2]);
    for (int i = 3; i + 2 < count; i += 3) {
        const CellKind kind = std::string(values[i]) == "gru" ? CellKind::gru : CellKind::lstm;
        if (measure_layer(kind, std::atoi(values[i + 1]), std::atoi(values[i + 2]), rounds, turn) != 0) return 1;
    }
    return 0;
}
