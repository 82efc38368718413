// Tests layers with kept weights: they give the bits of a stream, also in several threads.
#include "vkrnn/prepared.h"

#include <array>
#include <atomic>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "variables.h"
#include "vkrnn/error.h"
#include "vkrnn/stream.h"

namespace vkrnn {
namespace {

using enum Argument;

constexpr std::int64_t I = 5, H = 19, T = 7, N = 3;

std::vector<float> numbers(std::int64_t count, double seed) {
    std::vector<float> drawn(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < drawn.size(); ++i)
        drawn[i] = static_cast<float>(0.4 * std::sin(seed + 1.7 * static_cast<double>(i)));
    return drawn;
}

// Two LSTM layers and their weights.
struct Network {
    std::vector<float> input = numbers(4 * H * I, 1), inner = numbers(4 * H * H, 2), recurrent = numbers(4 * H * H, 3);
    std::vector<NetworkLayer> layers{
        {default_descriptor(CellKind::lstm),
         {{input_weight, {input.data(), {4 * H, I}}}, {recurrent_weight, {recurrent.data(), {4 * H, H}}}}},
        {default_descriptor(CellKind::lstm),
         {{input_weight, {inner.data(), {4 * H, H}}}, {recurrent_weight, {recurrent.data(), {4 * H, H}}}}}};
};

struct Results {
    std::vector<float> output = std::vector<float>(T * N * H), hidden = std::vector<float>(2 * N * H), cell = hidden;
    bool operator==(const Results&) const = default;
};

Results run(const PreparedLayers& layers, const std::vector<float>& source, const Results* before = nullptr,
            std::int64_t steps = T) {
    Results results;
    LayersCall call{.T = steps, .N = N, .source = source.data()};
    if (before != nullptr) {
        call.hidden = before->hidden.data();
        call.cell = before->cell.data();
    }
    call.output = results.output.data();
    call.last_hidden = results.hidden.data();
    call.last_cell = results.cell.data();
    layers.run(call, {});
    return results;
}

// Reads the states of all layers, which have equal sizes, one after the other.
void read_state(Stream& stream, std::vector<float>& hidden, std::vector<float>& cell) {
    std::vector<LayerState<void*>> places;
    const std::size_t each = hidden.size() / stream.layers();
    for (std::size_t i = 0; i < stream.layers(); ++i)
        places.push_back({hidden.data() + i * each, cell.data() + i * each});
    stream.read_state(places);
}

Results run_stream(Stream& stream, const std::vector<float>& source) {
    Results results;
    stream.step(std::span(source), std::span(results.output));
    read_state(stream, results.hidden, results.cell);
    return results;
}

TEST(PreparedLayers, HaveTheBitsOfAStream) {
    const std::shared_ptr<Device> device = Device::open_cpu();
    const Network network;
    const PreparedLayers layers(device, network.layers);
    Stream stream(device, network.layers, {.batch = N});
    const std::vector<float> source = numbers(T * N * I, 4), next = numbers(T * N * I, 5);
    const Results first = run(layers, source);
    EXPECT_EQ(first, run_stream(stream, source));
    EXPECT_EQ(run(layers, next, &first), run_stream(stream, next));
}

// Runs two layers of two directions. Returns the output [T, rows, 2 H] and the last states [2, 2, rows, H].
Results run_both_ways(const PreparedLayers& layers, std::int64_t steps, std::int64_t rows,
                      const std::vector<float>& source, const std::vector<float>& hidden,
                      const std::vector<float>& cell, const std::int32_t* lengths = nullptr) {
    Results results{std::vector<float>(static_cast<std::size_t>(steps * rows * 2 * H)), hidden, cell};
    layers.run({.T = steps,
                .N = rows,
                .source = source.data(),
                .hidden = hidden.data(),
                .cell = cell.data(),
                .lengths = lengths,
                .output = results.output.data(),
                .last_hidden = results.hidden.data(),
                .last_cell = results.cell.data()},
               {});
    return results;
}

// Returns elements [first, first + count) of every `stride`.
std::vector<float> parts(const std::vector<float>& all, std::int64_t stride, std::int64_t first, std::int64_t count) {
    std::vector<float> some;
    for (auto from = all.begin(); from != all.end(); from += stride)
        some.insert(some.end(), from + first, from + first + count);
    return some;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-6) << i;
}

TEST(PreparedLayers, RunEachRowForItsLength) {
    const std::vector<float> input = numbers(2 * 4 * H * I, 1), inner = numbers(2 * 4 * H * 2 * H, 2),
                             recurrent = numbers(2 * 4 * H * H, 3);
    Descriptor descriptor = default_descriptor(CellKind::lstm);
    descriptor.set(Flag::bidirectional, true);
    const HostTensor back{recurrent.data(), {2, 4 * H, H}};
    const std::array layers_given{
        NetworkLayer{descriptor, {{input_weight, {input.data(), {8 * H, I}}}, {recurrent_weight, back}}},
        NetworkLayer{descriptor, {{input_weight, {inner.data(), {8 * H, 2 * H}}}, {recurrent_weight, back}}}};
    const PreparedLayers layers(Device::open_cpu(), layers_given);
    const std::vector<float> source = numbers(T * N * I, 4), hidden = numbers(4 * N * H, 5),
                             cell = numbers(4 * N * H, 6);
    const std::array<std::int32_t, N> lengths{4, 0, T};
    const Results found = run_both_ways(layers, T, N, source, hidden, cell, lengths.data());
    for (std::int64_t n = 0; n < N; ++n) {
        const std::vector<float> output = parts(found.output, N * 2 * H, n * 2 * H, 2 * H),
                                 last_hidden = parts(found.hidden, N * H, n * H, H),
                                 last_cell = parts(found.cell, N * H, n * H, H),
                                 own_hidden = parts(hidden, N * H, n * H, H), own_cell = parts(cell, N * H, n * H, H);
        const std::int64_t length = lengths.at(static_cast<std::size_t>(n));
        const auto end = output.begin() + length * 2 * H;
        EXPECT_EQ(std::vector(end, output.end()), std::vector<float>(static_cast<std::size_t>(output.end() - end)));
        if (length == 0) {
            EXPECT_EQ(last_hidden, own_hidden);
            EXPECT_EQ(last_cell, own_cell);
            continue;
        }
        std::vector<float> own_source = parts(source, N * I, n * I, I);
        own_source.resize(static_cast<std::size_t>(length * I));
        const Results alone = run_both_ways(layers, length, 1, own_source, own_hidden, own_cell);
        expect_near({output.begin(), end}, alone.output);
        expect_near(last_hidden, alone.hidden);
        expect_near(last_cell, alone.cell);
    }
    const std::array<std::int32_t, N> whole{T, T, T};
    EXPECT_EQ(run_both_ways(layers, T, N, source, hidden, cell, whole.data()),
              run_both_ways(layers, T, N, source, hidden, cell));
}

TEST(PreparedLayers, LeaveZerosIfNoRowHasSteps) {
    const Network network;
    const PreparedLayers layers(Device::open_cpu(), network.layers);
    const std::vector<float> source = numbers(T * N * I, 4);
    const std::array<std::int32_t, N> none{};
    Results results{source, std::vector<float>(2 * N * H, 7), std::vector<float>(2 * N * H, 7)};
    results.output.resize(T * N * H, 7);
    layers.run({.T = T,
                .N = N,
                .source = source.data(),
                .lengths = none.data(),
                .output = results.output.data(),
                .last_hidden = results.hidden.data(),
                .last_cell = results.cell.data()},
               {});
    EXPECT_EQ(results, Results());
}

TEST(PreparedLayers, RefuseLengthsOutOfRange) {
    const Network network;
    const PreparedLayers layers(Device::open_cpu(), network.layers);
    const std::vector<float> source = numbers(T * N * I, 4);
    Results results;
    for (const std::int32_t wrong : {-1, 8}) {
        const std::array<std::int32_t, N> lengths{0, wrong, 7};
        try {
            layers.run({.T = T,
                        .N = N,
                        .source = source.data(),
                        .lengths = lengths.data(),
                        .output = results.output.data(),
                        .last_hidden = results.hidden.data(),
                        .last_cell = results.cell.data()},
                       {});
            ADD_FAILURE() << "nothing was thrown";
        } catch (const ValueError& error) {
            EXPECT_EQ(error.what(), "[layers] lengths: expected 0 to T = 7, got " + std::to_string(wrong) + " at [1]");
        }
    }
}

TEST(PreparedLayers, RunInSeveralThreads) {
    const Network network;
    const PreparedLayers layers(Device::open_cpu(), network.layers);
    const std::vector<float> source = numbers(T * N * I, 4);
    const Results right = run(layers, source), of_a_step = run(layers, source, nullptr, 1);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&, i] {
            for (int j = 0; j < 50; ++j)
                if (run(layers, source, nullptr, i % 2 == 0 ? T : 1) != (i % 2 == 0 ? right : of_a_step)) ++wrong;
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}

// A step of one batch row: the output [H], and the states [2, H] of both layers.
struct StepResults {
    std::vector<float> output = std::vector<float>(H), hidden = std::vector<float>(2 * H), cell = hidden;
    bool operator==(const StepResults&) const = default;
};

LayersCall call_of_step(const std::vector<float>& source, const StepResults* before, StepResults& results) {
    LayersCall call{.T = 1, .N = 1, .source = source.data()};
    if (before != nullptr) {
        call.hidden = before->hidden.data();
        call.cell = before->cell.data();
    }
    call.output = results.output.data();
    call.last_hidden = results.hidden.data();
    call.last_cell = results.cell.data();
    return call;
}

TEST(PreparedLayers, RunASingleStepAsAStreamDoes) {
    const std::shared_ptr<Device> device = Device::open_cpu();
    const Network network;
    const PreparedLayers layers(device, network.layers);
    Stream stream(device, network.layers, {.batch = 1});
    StepResults before;
    for (int step = 0; step < 3; ++step) {
        const std::vector<float> source = numbers(I, step);
        StepResults found, of_stream;
        ASSERT_TRUE(layers.run_step(call_of_step(source, step == 0 ? nullptr : &before, found)));
        stream.step(std::span(source), std::span(of_stream.output));
        read_state(stream, of_stream.hidden, of_stream.cell);
        EXPECT_EQ(found, of_stream);
        before = found;
    }
    // Without states, a step begins with zeros, whatever ran before.
    const std::vector<float> source = numbers(I, 0);
    StepResults again, first;
    ASSERT_TRUE(layers.run_step(call_of_step(source, nullptr, again)));
    stream.reset();
    stream.step(std::span(source), std::span(first.output));
    EXPECT_EQ(again.output, first.output);
}

TEST(PreparedLayers, RunSingleStepsInSeveralThreads) {
    const Network network;
    const PreparedLayers layers(Device::open_cpu(), network.layers);
    const auto run_one = [&](int number) {
        const std::vector<float> source = numbers(I, number);
        StepResults results;
        layers.run(call_of_step(source, nullptr, results), {});
        const LayersCall call = call_of_step(source, nullptr, results);
        if (!layers.run_step(call)) layers.run(call, {});
        return results;
    };
    const StepResults right[] = {run_one(0), run_one(1), run_one(2), run_one(3)};
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&, i] {
            for (int j = 0; j < 500; ++j)
                if (run_one(i) != right[i]) ++wrong;
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}

// A step with too much work to run without a poll. Without a state it is an ordinary call, which needs no recurrent
// product.
TEST(PreparedLayers, RunALongStepAsAStreamDoes) {
    constexpr std::int64_t kUnits = 300;
    const std::vector<float> weights = numbers(4 * kUnits * kUnits, 2);
    const HostTensor weight{weights.data(), {4 * kUnits, kUnits}};
    const NetworkLayer layer{default_descriptor(CellKind::lstm), {{input_weight, weight}, {recurrent_weight, weight}}};
    const std::shared_ptr<Device> device = Device::open_cpu();
    const PreparedLayers layers(device, {&layer, 1});
    Stream stream(device, {&layer, 1}, {.batch = 1});
    std::vector<float> states[3] = {std::vector<float>(kUnits), numbers(kUnits, 5), numbers(kUnits, 6)};
    stream.write_state(std::array{LayerState<const void*>{states[1].data(), states[2].data()}});
    for (int step = 0; step < 3; ++step) {
        const std::vector<float> source = numbers(kUnits, step), before = states[1], cell_before = states[2];
        const LayersCall call{.T = 1,
                              .N = 1,
                              .source = source.data(),
                              .hidden = before.data(),
                              .cell = cell_before.data(),
                              .output = states[0].data(),
                              .last_hidden = states[1].data(),
                              .last_cell = states[2].data()};
        EXPECT_FALSE(layers.run_step(call));
        layers.run(call, {});
        EXPECT_EQ(device->statistics().calls, 0);
        std::vector<float> output(kUnits), hidden(kUnits), cell(kUnits);
        stream.step(std::span(source), std::span(output));
        read_state(stream, hidden, cell);
        EXPECT_EQ(states[0], output);
        EXPECT_EQ(states[1], hidden);
        EXPECT_EQ(states[2], cell);
    }
    const std::vector<float> source = numbers(kUnits, 0);
    std::vector<float> first(kUnits);
    layers.run({.T = 1,
                .N = 1,
                .source = source.data(),
                .output = states[0].data(),
                .last_hidden = states[1].data(),
                .last_cell = states[2].data()},
               {});
    EXPECT_EQ(device->statistics().calls, 1);
    stream.reset();
    stream.step(std::span(source), std::span(first));
    EXPECT_EQ(states[0], first);
}

// What the fast way cannot do, the ordinary call reports.
TEST(PreparedLayers, ReportAWrongNumberOfThreads) {
    constexpr std::int64_t kUnits = 300;
    const std::vector<float> weights = numbers(4 * kUnits * kUnits, 2), states = numbers(kUnits, 5);
    const HostTensor weight{weights.data(), {4 * kUnits, kUnits}};
    const NetworkLayer layer{default_descriptor(CellKind::lstm), {{input_weight, weight}, {recurrent_weight, weight}}};
    const PreparedLayers layers(Device::open_cpu(), {&layer, 1});
    std::vector<float> results[3] = {states, states, states};
    const LayersCall call{.T = 1,
                          .N = 1,
                          .source = states.data(),
                          .hidden = states.data(),
                          .cell = states.data(),
                          .output = results[0].data(),
                          .last_hidden = results[1].data(),
                          .last_cell = results[2].data()};
    layers.run(call, {});
    test::set_variable("VKRNN_NUM_THREADS", "many");
    try {
        layers.run(call, {});
        ADD_FAILURE() << "nothing was thrown";
    } catch (const DeviceError& error) {
        EXPECT_STREQ(error.what(), "[lstm] VKRNN_NUM_THREADS: expected a positive number, got 'many'");
    }
    test::set_variable("VKRNN_NUM_THREADS", std::nullopt);
}

TEST(PreparedLayers, LeaveOtherCallsToRun) {
    const Network network;
    const std::shared_ptr<Device> device = Device::open_cpu();
    const PreparedLayers layers(device, network.layers);
    const std::vector<float> source = numbers(T * N * I, 4);
    StepResults results;
    LayersCall call = call_of_step(source, nullptr, results);
    call.T = 2;
    EXPECT_FALSE(layers.run_step(call));
    call.T = 1;
    call.N = 2;
    EXPECT_FALSE(layers.run_step(call));
    call.N = 1;
    const std::int32_t none = 0, whole = 1;
    call.lengths = &none;
    EXPECT_FALSE(layers.run_step(call));
    call.lengths = &whole;
    EXPECT_TRUE(layers.run_step(call));
    call.lengths = nullptr;
    EXPECT_TRUE(layers.run_step(call));
    device->close();
    EXPECT_FALSE(layers.run_step(call));
}

TEST(PreparedLayers, RefuseDifferentSizes) {
    Network network;
    network.layers[1].weights[recurrent_weight].shape = {4 * 5, 5};
    network.layers[1].weights[input_weight].shape = {4 * 5, H};
    EXPECT_THROW(PreparedLayers(Device::open_cpu(), network.layers), ValueError);
}

TEST(PreparedLayers, ReportAClosedDevice) {
    const Network network;
    const std::shared_ptr<Device> device = Device::open_cpu();
    const PreparedLayers layers(device, network.layers);
    device->close();
    try {
        run(layers, numbers(T * N * I, 4));
        FAIL() << "nothing was thrown";
    } catch (const DeviceError& error) {
        EXPECT_STREQ(error.what(), "[lstm] the device is closed; open a new vkrnn.Device");
    }
}

}  // namespace
}  // namespace vkrnn
