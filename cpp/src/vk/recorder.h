// Turns a plan with its buffers placed into command buffers, and submits them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "allocation.h"
#include "compiler.h"
#include "recordings.h"
#include "stream.h"
#include "team.h"
#include "vkrnn/device.h"
#include "vkrnn/plan.h"
#include "vulkan.h"

namespace vkrnn::vk {

// A copy from one piece of device memory to another.
struct Copy {
    Slice from, to;
};

class Recorder {
public:
    // All must outlive the recorder. `patient`: see Compiler. Throws vk::SystemError, and like Kernels::get where there
    // are helpers.
    Recorder(const LogicalDevice& device, Kernels& kernels, Stream& stream,
             std::span<const std::unique_ptr<Helper>> helpers, bool patient);

    // Compiles what is missing of the plan's kernels and records the plan into the stream's command buffer, which it
    // opens where none is, and into more where one would take long, between the copies `before` and `after`; submits
    // them and says when they are done. `placements` are the plan's buffers. A call that comes again, and needs neither
    // copies nor more than one command buffer, is recorded only once. What is `filled` already, by buffer, is not
    // filled again. Throws Interrupted and vk::SystemError, like Kernels::get, and std::logic_error for a plan that
    // contradicts itself.
    Point run(const std::shared_ptr<const Plan>& plan, std::span<const Slice> placements,
              const std::vector<bool>& filled, std::span<const Copy> before, std::span<const Copy> after,
              std::string_view label, const Poll& poll);

    // Which timestamps the last run has, and what they say once it is done: from the first step to the end of the last,
    // copies excluded. Nothing where they do not say it any more, 0 where the device has no timestamps. As many runs as
    // the stream has command buffers may be on their way.
    [[nodiscard]] std::uint32_t last_timing() const { return timing_; }
    [[nodiscard]] std::optional<double> device_seconds(std::uint32_t timing) const;

    // Thread-safe.
    [[nodiscard]] std::uint64_t dispatches() const { return dispatches_; }  // submitted so far
    [[nodiscard]] std::uint64_t repeated() const { return repeated_; }      // runs that were not recorded anew
    [[nodiscard]] std::uint64_t helped() const { return helped_calls_; }    // runs that helpers had a part in

    // Whether helpers were waited for in vain: what was computed since is wrong. Thread-safe.
    [[nodiscard]] bool left_alone() const;

private:
    void record(const Plan& plan, std::span<const Slice> placements, std::span<const Copy> before,
                std::span<const Copy> after);
    Point repeat(Recording& recording);
    [[nodiscard]] Ready ready(const Dispatch& dispatch, std::span<const Slice> placements) const;
    void step(const Clear& clear, std::span<const Slice> placements);
    void step(const Dispatch& dispatch, std::span<const Slice> placements);
    void step(const Loop& loop, std::span<const Slice> placements);
    void record(const Ready& ready, bool after);
    void share(const Ready& ready);
    void meet();
    void open_helpers();
    void fill_constants(const Plan& plan, std::span<const Slice> placements);
    void copy(std::span<const Copy> copies);
    void barrier(PipelineStageFlags2 stages, AccessFlags2 access);
    void timestamp(std::uint32_t which, PipelineStageFlagBits2 stage);
    void open();
    Point close();
    void split();
    void split_if_full();

    const LogicalDevice& device_;
    Stream& stream_;
    std::vector<Member> members_;       // the device, then its helpers
    std::optional<Compiler> compiler_;  // none while there are not all of them
    raii::QueryPool queries_ = nullptr;
    std::uint32_t timing_ = 0, next_timing_ = 0;
    bool labels_;
    std::atomic<std::uint64_t> dispatches_ = 0, repeated_ = 0, helped_calls_ = 0;
    Recordings recordings_;

    // Of the run going on; kept to save allocations.
    std::vector<Ready> body_;
    std::vector<std::byte> block_;
    std::string label_;
    const std::vector<bool>* filled_ = nullptr;
    bool together_ = false;  // with helpers, if there are any
    bool shared_ = false;    // with one at least
    const Poll* poll_ = nullptr;
    std::unique_ptr<Recording> kept_;  // what the run is to be kept as
    // Of the command buffer being recorded.
    std::uint32_t recorded_ = 0;
    bool helped_ = false;  // helpers have one open as well
    // What no later command has waited for yet.
    bool computed_ = false;
    bool transferred_ = false;
    bool waits_ = false;  // a dispatch that was left out would have waited
    // What the device did that its helpers have not waited for, up to the last barrier and since; and the reverse.
    bool ahead_ = false, pending_ = false, lent_ = false;
};

}  // namespace vkrnn::vk
