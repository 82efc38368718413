// Tests streams: they give the bits of a call step by step, and allocate and lock nothing.
#include "vkrnn/stream.h"

#include <atomic>
#include <thread>

#include "cpu/run/cpu_runner.h"
#include "cpu_plans.h"
#include "forks.h"
#include "polls.h"
#include "vkrnn/error.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VKRNN_COUNTS_ALLOCATIONS

namespace {
std::atomic<long> allocations = 0;
}

// Replace the C library's functions.
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t bytes);
extern "C" void* malloc(std::size_t bytes) {
    ++allocations;
    return __libc_malloc(bytes);
}
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
    ++allocations;
    return __libc_memalign(alignment, bytes);
}
#endif

namespace vkrnn {
namespace {

using enum Argument;
using cpu::Arrays;

// A forward call with all arguments that a stream's layer may have.
Spec call_of(CellKind kind, const cpu::Shape& shape, std::initializer_list<Flag> flags = {}) {
    Spec spec = cpu::learning_spec(kind, shape, flags);
    spec.descriptor.set(Flag::training, false);
    return spec;
}

std::vector<Spec> calls_of(const cpu::Shape& shape) {
    return {call_of(CellKind::single_gate_rnn, shape), call_of(CellKind::lstm, shape), call_of(CellKind::gru, shape),
            call_of(CellKind::gru, shape, {Flag::reset_after})};
}

StreamPart part_of_call(Spec spec) {
    spec.T = 1;
    return {spec, {}};
}

// Runs steps of one layer with CpuRunner, from the initial state in the arrays.
template <class T>
std::vector<T> step_by_step(const cpu::Target& target, Spec spec, const Arrays& arrays, unsigned threads,
                            std::int64_t block) {
    spec.dtype = sizeof(T) == sizeof(double) ? Dtype::float64 : Dtype::float32;
    const cpu::Threads allowed(threads);
    std::map<Argument, cpu::Aligned<T>> given;
    for (const auto& [argument, values] : arrays) given[argument].assign(values.begin(), values.end());
    StreamPart part = part_of_call(spec);
    for (const auto& [argument, values] : given) part.weights[argument] = values.data();
    const auto plan = std::make_shared<const Plan>(make_plan(part.spec, cpu::profile_of(target)));
    cpu::CpuRunner runner(target, std::make_shared<cpu::Memory>(), {&part, 1}, {&plan, 1}, 0);
    runner.write(0, init_state, given.at(init_state).data());
    if (spec.C() > 0) runner.write(0, init_cell, given.at(init_cell).data());
    std::vector<T> output(static_cast<std::size_t>(spec.T * spec.N * spec.H), T{-1000});
    for (std::int64_t t = 0; t < spec.T; t += block)
        runner.run(given.at(source).data() + t * spec.N * spec.I, output.data() + t * spec.N * spec.H,
                   std::min(block, spec.T - t), {});
    return output;
}

template <class T>
void expect_bits_of_a_call(const cpu::Target& target, const Spec& spec, unsigned threads = 1, std::int64_t block = 1) {
    const Arrays arrays = cpu::make_arrays(spec);
    const auto whole = cpu::run_plan<T>(target, spec, arrays);
    const std::vector<T> steps = step_by_step<T>(target, spec, arrays, threads, block);
    EXPECT_EQ(std::memcmp(steps.data(), whole[0].data(), steps.size() * sizeof(T)), 0)
        << cpu::name_of_case(spec) << " on " << target.name << ", N=" << spec.N << " I=" << spec.I << " H=" << spec.H;
}

TEST(Stream, HasTheBitsOfACall) {
    for (const cpu::Target& target : cpu::targets())
        // One vector or several, and one run of a product or several.
        for (const cpu::Shape& shape :
             {cpu::Shape{5, 1, 3, 7}, cpu::Shape{4, 1, 40, 71}, cpu::Shape{2, 1, 300, 210}, cpu::Shape{4, 3, 5, 19}})
            for (const Spec& spec : calls_of(shape)) {
                expect_bits_of_a_call<float>(target, spec);
                expect_bits_of_a_call<double>(target, spec);
            }
}

TEST(Stream, HasTheBitsOfACallInBlocks) {
    for (const Spec& spec : calls_of({7, 2, 3, 9})) expect_bits_of_a_call<float>(cpu::chosen_target(), spec, 1, 3);
}

TEST(Stream, HasTheBitsOfACallOnSeveralThreads) {
    const cpu::Shape shape{2, 1, 256, 300};  // large enough for several threads
    expect_bits_of_a_call<float>(cpu::chosen_target(), call_of(CellKind::lstm, shape), 3);
    expect_bits_of_a_call<float>(cpu::chosen_target(), call_of(CellKind::gru, shape), 3);
}

TEST(Stream, HasTheBitsOfACallWithoutInputWeight) {
    Spec spec = call_of(CellKind::lstm, {4, 1, 4 * 21, 21});
    spec.present &= ~(1U << static_cast<unsigned>(input_weight));
    expect_bits_of_a_call<float>(cpu::chosen_target(), spec);
}

// LSTM layers with I, H, ... inputs and H units each.
struct Network {
    Network(std::int64_t I, std::int64_t H, std::size_t count = 2) {
        cpu::Numbers numbers;
        for (std::size_t i = 0; i < count; ++i) {
            const std::int64_t inputs = i == 0 ? I : H;
            arrays.push_back(numbers.array<float>(4 * H * inputs, 0.3));
            arrays.push_back(numbers.array<float>(4 * H * H, 0.3));
            NetworkLayer layer{default_descriptor(CellKind::lstm), {}};
            layer.weights[input_weight] = {arrays[2 * i].data(), {4 * H, inputs}};
            layer.weights[recurrent_weight] = {arrays[2 * i + 1].data(), {4 * H, H}};
            layers.push_back(layer);
        }
    }
    std::vector<cpu::Aligned<float>> arrays;
    std::vector<NetworkLayer> layers;
};

TEST(Stream, LayersInBlocksEqualLayersInSteps) {
    const Network network(3, 17);
    constexpr std::int64_t kSteps = 150;  // more steps than a block that layers run together
    Stream stream(Device::open_cpu(), network.layers, {.batch = 2});
    const auto input = cpu::Numbers().array<float>(kSteps * 2 * 3);
    std::vector<float> steps(kSteps * 2 * 17), block(steps.size());
    for (std::size_t t = 0; t < kSteps; ++t)
        stream.step(std::span(input.data() + t * 6, 6), std::span(steps.data() + t * 34, 34));
    stream.reset();
    stream.step(std::span(std::as_const(input)), std::span(block));
    EXPECT_EQ(steps, block);
}

// Their steps are too small for a second thread, which a wavefront of the layers uses.
TEST(Stream, LayersAsAWavefrontEqualLayersInSteps) {
    constexpr std::int64_t kSteps = 150;  // more than a block, and no multiple of a piece
    for (const unsigned threads : {2U, 3U, 4U}) {
        const cpu::Threads allowed(threads);
        const Network network(3, 64, 4);
        Stream stream(Device::open_cpu(), network.layers, {});
        const auto input = cpu::Numbers().array<float>(kSteps * 3);
        std::vector<float> steps(kSteps * 64), block(steps.size());
        for (std::size_t t = 0; t < kSteps; ++t)
            stream.step(std::span(input.data() + t * 3, 3), std::span(steps.data() + t * 64, 64));
        stream.reset();
        stream.step(std::span(std::as_const(input)), std::span(block));
        EXPECT_GT(cpu::idle_threads(), 0);
        EXPECT_EQ(steps, block);
    }
}

#ifdef VKRNN_COUNTS_ALLOCATIONS
TEST(Stream, AllocatesNothingAfterTheFirstStep) {
    const std::shared_ptr<Device> device = Device::open_cpu();
    const Network network(3, 17);
    for (const std::int64_t batch : {1, 3}) {
        Stream stream(device, network.layers, {.batch = batch, .threads = 1});
        const auto n = static_cast<std::size_t>(batch);
        const std::vector<float> input(n * 3, 0.5F);
        std::vector<float> output(n * 17);
        stream.step(std::span(input), std::span(output));
        const long before = allocations;
        for (int i = 0; i < 1000; ++i) stream.step(std::span(input), std::span(output));
        stream.reset();
        EXPECT_EQ(allocations - before, 0) << "batch " << batch;
    }
}
#endif

TEST(Stream, ResetsSomeRows) {
    const Network network(3, 17);
    Stream stream(Device::open_cpu(), network.layers, {.batch = 3});
    const std::vector<float> input(9, 0.5F);
    std::vector<float> first(51), output(51);
    stream.step(std::span(input), std::span(first));
    stream.reset(std::vector<std::int64_t>{1});
    stream.step(std::span(input), std::span(output));
    for (std::size_t j = 0; j < 17; ++j) {
        EXPECT_EQ(output[17 + j], first[17 + j]);
        EXPECT_NE(output[j], first[j]);
        EXPECT_NE(output[34 + j], first[34 + j]);
    }
}

template <class Expected, class Function>
std::string message_of(const Function& function) {
    try {
        function();
    } catch (const Expected& error) {
        return error.what();
    }
    return "nothing was thrown";
}

TEST(Stream, RefusesMistakes) {
    const std::shared_ptr<Device> device = Device::open_cpu();
    Network network(3, 17);
    const auto make = [&] { Stream(device, network.layers); };
    {
        Stream stream(device, network.layers);
        std::vector<float> input(3), output(16);
        EXPECT_EQ(message_of<ValueError>([&] { stream.step(std::span(input), std::span(output)); }),
                  "[stream] output: expected T N H = 17 elements, got 16");
        std::vector<double> doubles(3), results(17);
        EXPECT_EQ(message_of<TypeError>([&] { stream.step(std::span(doubles), std::span(results)); }),
                  "[stream] input: expected float32, got float64");
    }
    network.layers[1].weights[input_weight].shape = {68, 16};
    EXPECT_EQ(message_of<ValueError>(make),
              "[lstm 'layer 1'] input_weight: expected a layer of 17 inputs, the H of layer 0, got one of 16");
    network.layers.pop_back();
    network.layers[0].descriptor.set(Flag::reverse, true);
    EXPECT_EQ(message_of<NotImplementedError>(make),
              "[lstm 'layer 0'] reverse: expected False, got True; a stream runs forward in time");
}

TEST(Stream, ReportsAClosedDevice) {
    const std::shared_ptr<Device> device = Device::open_cpu();
    const Network network(3, 17);
    Stream stream(device, network.layers);
    device->close();
    std::vector<float> input(3), output(17);
    EXPECT_EQ(message_of<DeviceError>([&] { stream.step(std::span(input), std::span(output)); }),
              "[stream] the device is closed; open a new vkrnn.Device");
}

// Two layers of 200 units, whose blocks have enough steps for several polls.
constexpr std::int64_t kBlockSteps = 500;

TEST(Stream, AnInterruptedBlockLeavesTheState) {
    const test::PollsAlways polls;
    const Network network(3, 200);
    Stream stream(Device::open_cpu(), network.layers, {.threads = 1});
    const std::vector<float> input(3 * kBlockSteps, 0.5F);
    std::vector<float> output(200 * kBlockSteps), first(200), again(200);
    stream.step(input.data(), first.data());
    stream.reset();
    EXPECT_THROW(stream.step(input.data(), output.data(), kBlockSteps, [] { return true; }), Interrupted);
    stream.step(input.data(), again.data());
    EXPECT_EQ(first, again);
}

TEST(Stream, AnInterruptedBlockLeavesTheStateThatItReset) {
    const test::PollsAlways polls;
    const Network network(3, 200);
    Stream stream(Device::open_cpu(), network.layers, {.threads = 1});
    const std::vector<float> input(3 * kBlockSteps, 0.5F);
    std::vector<float> output(200 * kBlockSteps), second(200), again(200);
    for (int step = 0; step < 2; ++step) stream.step(input.data(), second.data());
    stream.reset();
    stream.step(input.data(), again.data());
    std::vector<double> factors(kBlockSteps, 1);
    factors.front() = 0;
    EXPECT_THROW(stream.step(
                     input.data(), output.data(), kBlockSteps, [] { return true; }, factors),
                 Interrupted);
    stream.step(input.data(), again.data());
    EXPECT_EQ(second, again);
}

// The child starts threads, which ThreadSanitizer and QEMU, under which tests for 64-bit ARM run, do not allow.
#if defined(VKRNN_HAS_FORKS) && !defined(__SANITIZE_THREAD__) && !defined(__aarch64__)
TEST(Stream, AChildForkedInABlockFinishesIt) {
    const test::PollsAlways polls;
    const cpu::Threads allowed(2);
    const Network network(3, 200);
    Stream stream(Device::open_cpu(), network.layers);
    const std::vector<float> input(3 * kBlockSteps, 0.5F);
    std::vector<float> output(200 * kBlockSteps), expected(200 * kBlockSteps);
    stream.step(input.data(), expected.data(), kBlockSteps);
    stream.reset();
    pid_t child = -1;
    const auto fork_once = [&] {
        if (child == -1 && (child = fork()) == 0) alarm(test::kHangs);
        return false;
    };
    bool failed = false;
    try {
        stream.step(input.data(), output.data(), kBlockSteps, fork_once);
    } catch (...) {
        failed = true;
    }
    if (child == 0) _exit(failed || output != expected ? 1 : 0);
    ASSERT_NE(child, -1);
    EXPECT_EQ(output, expected);
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}
#endif

TEST(Stream, RefusesASecondThread) {
    const test::PollsAlways polls;
    const Network network(3, 200);
    Stream stream(Device::open_cpu(), network.layers, {.threads = 1});
    const std::vector<float> input(3 * kBlockSteps, 0.5F);
    std::vector<float> output(200 * kBlockSteps);
    // The poll runs inside a block.
    std::string message;
    const auto intrude = [&] {
        std::thread([&] { message = message_of<Error>([&] { stream.reset(); }); }).join();
        return true;
    };
    EXPECT_THROW(stream.step(input.data(), output.data(), kBlockSteps, intrude), Interrupted);
    EXPECT_EQ(message, "[stream] another thread is using the stream; give each thread a stream of its own");
}

TEST(Stream, ReturnsToItsStart) {
    const Network network(3, 17);
    Stream stream(Device::open_cpu(), network.layers, {.batch = 2});
    const std::vector<float> input(6, 0.5F);
    std::vector<float> first(34), output(34);
    stream.step(std::span(input), std::span(output));
    stream.set_start();
    stream.step(std::span(input), std::span(first));
    stream.reset();
    stream.step(std::span(input), std::span(output));
    EXPECT_EQ(output, first);
    stream.reset(std::vector<std::int64_t>{1});
    stream.step(std::span(input), std::span(output));
    for (std::size_t j = 0; j < 17; ++j) {
        EXPECT_NE(output[j], first[j]);
        EXPECT_EQ(output[17 + j], first[17 + j]);
    }
}

}  // namespace
}  // namespace vkrnn
