// Devices of one CPU that share the dispatches of a call.
//
// llvmpipe wakes its threads for every dispatch, which takes longer than a small dispatch does. So where it runs the
// broadcast flavour, vkrnn opens it once per processor, each time in an instance of its own and without threads: a
// device then works in one thread, which takes its submissions. Each takes its part of a dispatch's workgroups, and
// between dispatches they meet by spinning on a number in memory that all see. One device is the call's: it has the
// memory, does copies, fills and small dispatches alone, and waits for the others at the end. The others, its helpers,
// lend a processor.
//
// A device address is the host's in this driver, so one device reads and writes what another allocated. Vulkan does not
// promise that: the self-test proves it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "abi.h"
#include "allocation.h"
#include "kernel.h"
#include "stream.h"
#include "timeline.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

// A dispatch with its addresses looked up.
struct Ready {
    std::size_t kernel = 0;  // of the plan
    std::array<std::byte, kPushBytes> push;
    std::uint32_t push_bytes = 0;
    std::optional<std::uint32_t> counter{};  // see Dispatch
    std::array<std::uint32_t, 3> groups;
    std::uint32_t window_count = 0;
    std::array<Slice, abi::kWindows> windows;
    bool shared = false;     // between members
    std::uint32_t axis = 0;  // to share the workgroups along
};

// A device that records its part of a plan.
class Member {
public:
    // All three must outlive the member. `helper` is the number of a helper. Throws vk::SystemError.
    Member(const LogicalDevice& device, Kernels& kernels, Stream& stream, std::optional<std::size_t> helper = {});

    // The kernels of what will be recorded, which must outlive that.
    void prepare(std::span<const Kernel> kernels);
    // Which of them were never compiled.
    [[nodiscard]] std::vector<std::size_t> missing() const;
    // Compiles some of them, as far as Vulkan goes. Throws like Kernels::get.
    void compile(std::span<const std::size_t> kernels);
    // The driver's part of it comes with the first dispatch; this makes one of no workgroups and waits for it. Nothing
    // may be recorded in the stream. Throws like Kernels::get, Stream::begin and Stream::finish.
    void warm_up(std::size_t kernel, const Poll& poll);
    // To be called when the stream has opened a command buffer.
    void opened();
    // Records a part of the workgroups, from number `first` on, into the stream's command buffer. Throws like
    // Kernels::get.
    void dispatch(const Ready& ready, std::array<std::uint32_t, 3> first, std::array<std::uint32_t, 3> groups);
    void barrier(const MemoryBarrier2& memory) const;

    // In a team: gets what meetings need. Throws like Kernels::get.
    void join();
    // Records a meeting at the number: goes on when so many devices have come, and makes everything visible.
    void meet(std::uint64_t number, std::size_t devices);
    // The address of a number to meet at.
    [[nodiscard]] std::uint64_t number() const { return place_.whole.address + abi::kMeetNumber; }
    // Whether a meeting was given up, because the others did not come.
    [[nodiscard]] bool alone() const;

    [[nodiscard]] Stream& stream() const { return *stream_; }

private:
    Pipeline pipeline(std::size_t kernel);
    void bind(Pipeline pipeline);
    void push(std::span<const std::byte> bytes) const;
    void open_windows(std::span<const Slice> slices);

    const LogicalDevice* device_;
    Kernels* kernels_;
    Stream* stream_;
    std::span<const Kernel> prepared_;
    std::vector<Pipeline> pipelines_;  // of those prepared; null until needed
    std::optional<std::size_t> helper_;
    Pipeline bound_;
    std::array<DescriptorBufferInfo, abi::kWindows> windows_;  // those bound
    Allocation place_;                                         // see abi.h
    Pipeline meet_, wait_;
};

// Whether the package has the kernel for that; tests of this layer come without.
bool members_can_meet();

// A device that has nothing but its share of dispatches.
struct Helper {
    // Throws vk::SystemError.
    explicit Helper(std::shared_ptr<Timeline> of)
        : timeline(std::move(of)), kernels(*timeline->device()), stream(*timeline) {}
    ~Helper() { timeline->settle(timeline->submitted()); }
    Helper(const Helper&) = delete;
    Helper& operator=(const Helper&) = delete;

    std::shared_ptr<Timeline> timeline;
    Kernels kernels;
    Stream stream;
};

}  // namespace vkrnn::vk
