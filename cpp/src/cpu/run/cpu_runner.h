// Runs the steps of a stream on the CPU. Weights are packed, buffers placed and kernels looked up in advance.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cpu/memory/cpu_memory.h"
#include "cpu/threads/team.h"
#include "cpu/work/kernel.h"
#include "plan/cpu_work.h"
#include "run/stream_runner.h"

namespace vkrnn::cpu {

class CpuRunner final : public StreamRunner {
public:
    // `plans` are the plans of the layers' specs, with float32 in place of a 16-bit type. Throws std::bad_alloc.
    CpuRunner(const Target& target, std::shared_ptr<Memory> memory, std::span<const StreamPart> parts,
              std::span<const std::shared_ptr<const Plan>> plans, unsigned threads);

    void run(const void* input, void* output, std::int64_t steps, const Poll& poll) override;
    void run_step(const void* input, void* output, const Poll& poll, const Share& share) override;
    [[nodiscard]] bool is_simple() const override { return simple_; }
    void read(std::size_t layer, Argument state, void* to) override;
    void write(std::size_t layer, Argument state, const void* from) override;

private:
    struct Layer {
        const NamedKernel* loop = nullptr;
        const NamedKernel* step = nullptr;  // runs a single step; null if only the loop can
        std::vector<std::uint32_t> constants{};
        LoopWork loop_work{};
        StepWork step_work{};
        std::byte *hidden = nullptr, *cell = nullptr;  // the states; `cell` is null if there is none
        std::byte* next_hidden = nullptr;              // room for the hidden state after a step
        std::uint64_t hidden_bytes = 0, cell_bytes = 0;
        std::byte* output = nullptr;  // [kBlock, N, H]; null if the caller's memory is used
    };

    using Leases = std::vector<std::unique_ptr<Lease>>;

    void place(const Plan& plan, const StreamPart& part, Layer& layer);
    void prepare_row_step(const StreamPart& part, Layer& layer);
    // Returns a copy of prepacked weights, [slot][vector of units][k][lane], as a step reads them: see StepWork.
    Address in_step_order(const StreamPart& part, const Layer& layer, Address panels, std::int64_t depth);
    [[nodiscard]] unsigned threads_for(std::int64_t steps, unsigned most) const;
    [[nodiscard]] unsigned threads_now(std::int64_t steps) const;
    // Returns into how many parts a team of most_threads_ is divided to run a block of steps as a wavefront of the
    // layers; 1 if that gains nothing.
    [[nodiscard]] unsigned parts_for(std::int64_t steps) const;
    void run_steps(const std::byte* in, std::byte* out, std::int64_t steps, const Poll& poll, const Share& share);
    void run_simple_step(const std::byte* input, std::byte* output);
    // Runs a member's share of all layers over all steps.
    void work(Member& member, const std::byte* input, std::byte* output, std::int64_t steps) const;
    // Runs the same as a wavefront, on a team that is divided into `parts`.
    void run_wavefront(const std::byte* input, std::byte* output, std::int64_t steps, unsigned parts,
                       const Poll& poll) const;
    // Runs a member's share of a layer over some steps, and carries the state after barrier `which`, where it returns
    // false if the team has been stopped.
    bool run_layer(Member& member, const Layer& layer, const std::byte* input, std::byte* output, std::int64_t steps,
                   unsigned which) const;
    void run_loop(Member& member, const Layer& layer, const std::byte* input, std::byte* output,
                  std::int64_t steps) const;
    void convert(Member& member, const void* from, void* to, std::int64_t count, bool narrow) const;
    std::byte* take(std::uint64_t bytes, Leases& leases);
    std::byte* take(std::uint64_t bytes) { return take(bytes, leases_); }

    const Target& target_;
    const std::shared_ptr<Memory> memory_;
    const Dtype dtype_;
    const bool half_;
    const NamedKernel& convert_;
    const std::int64_t inputs_, outputs_;  // elements of a step: N * I and N * H
    const bool single_;                    // see kSingleSteps
    const unsigned most_threads_;
    Leases leases_, panels_;  // `panels_`: prepacked weights, which only the loops read
    std::vector<Layer> layers_;
    std::byte* states_ = nullptr;  // of all layers, followed by room for a copy of them
    std::uint64_t state_bytes_ = 0;
    std::byte *wide_input_ = nullptr, *narrow_output_ = nullptr;  // for 16-bit types: [kBlock, N, ...]
    std::int64_t block_ = 0;  // steps that a layer runs before the next layer begins
    double step_flops_ = 0;
    unsigned step_threads_ = 1;
    bool simple_ = false;  // whether a single step runs on one thread and cannot fail
    Solo solo_;
};

}  // namespace vkrnn::cpu
