// Turns a plan with its buffers placed into command buffers, and sends them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "device.h"
#include "kernel.h"
#include "memory.h"
#include "stream.h"
#include "vkrnn/plan.h"
#include "vulkan.h"

namespace vkrnn::vk {

// Copies the block to `to` with its places replaced by addresses. Throws std::out_of_range for a buffer that is not.
void resolve(const Block& block, std::span<const Placement> placements, std::byte* to);

class Recorder {
public:
    // All three must outlive the recorder. Throws vk::SystemError.
    Recorder(const LogicalDevice& device, Kernels& kernels, Stream& stream);

    // Compiles what is missing of the plan's kernels. Throws like Kernels::get.
    void prepare(const Plan& plan);

    // Records and submits the plan that was prepared, copies from and to staging memory included, and waits for it.
    // `placements` are the plan's. Throws Interrupted and vk::SystemError (the stream wants recover() then), and
    // std::logic_error for a plan that contradicts itself.
    void run(const Plan& plan, std::span<const Placement> placements, std::string_view label);

    // Of the last run: from the first step to the end of the last, uploads and downloads excluded. 0 where the device
    // has no timestamps.
    [[nodiscard]] double device_seconds() const;

    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }  // recorded so far

private:
    // A dispatch with its pipeline and addresses looked up.
    struct Ready {
        Pipeline pipeline;
        std::array<std::byte, kPushBytes> push;
        std::uint32_t push_bytes;
        std::array<std::uint32_t, 3> groups;
    };

    [[nodiscard]] Ready ready(const Dispatch& dispatch, std::span<const Placement> placements) const;
    void step(const Clear& clear, std::span<const Placement> placements);
    void step(const Dispatch& dispatch, std::span<const Placement> placements);
    void step(const Loop& loop, std::span<const Placement> placements);
    void record(const Ready& ready, bool after);
    void upload(const Plan& plan, std::span<const Placement> placements);
    void download(const Plan& plan, std::span<const Placement> placements);
    void barrier(PipelineStageFlags2 stages, AccessFlags2 access);
    void timestamp(std::uint32_t query, PipelineStageFlagBits2 stage);
    void open();
    void close();

    const LogicalDevice& device_;
    Kernels& kernels_;
    Stream& stream_;
    raii::QueryPool queries_ = nullptr;
    bool labels_;
    std::uint64_t dispatches_ = 0;

    // Of the run going on; kept to save allocations.
    std::vector<Pipeline> pipelines_;
    std::vector<Ready> body_;
    std::string label_;
    // Of the command buffer being recorded.
    Pipeline bound_;
    std::uint32_t recorded_ = 0;
    // What no later command has waited for yet.
    bool computed_ = false;
    bool transferred_ = false;
};

}  // namespace vkrnn::vk
