// What an open device works with. It goes when the device is closed, but for what arrays hold on to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "host_memory.h"
#include "vk/commands/recorder.h"
#include "vk/commands/stream.h"
#include "vk/commands/transfer.h"
#include "vk/memory/arena.h"
#include "vk/memory/workers.h"
#include "vk/pipelines/pipelines.h"
#include "vk/run/binding.h"

namespace vkrnn::vk {

struct Work {
    // Throws vk::SystemError.
    explicit Work(Seat seat)
        : device(std::make_shared<LogicalDevice>(std::move(seat))),
          timeline(std::make_shared<Timeline>(device, device->calls())),
          upload_timeline(&device->uploads() == &device->calls()
                              ? timeline
                              : std::make_shared<Timeline>(device, device->uploads())),
          pools{std::make_shared<Pool>(timeline, Use::device), std::make_shared<Pool>(timeline, Use::download)},
          for_host(std::min(kMostForHost, host_memory_available() / 8)),
          arena(*device),
          kernels(*device),
          stream(*timeline),
          transfer(*timeline, stream, workers),
          upload_stream(*upload_timeline),
          upload_transfer(*upload_timeline, upload_stream, workers),
          recorder(*device, kernels, stream) {}
    ~Work() {
        timeline->settle(timeline->submitted());
        upload_timeline->settle(upload_timeline->submitted());
        kernels.save(false);
    }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    // These are thread-safe.
    [[nodiscard]] std::uint64_t submissions() const {
        return timeline->submitted() + (upload_timeline == timeline ? 0 : upload_timeline->submitted());
    }
    // Bytes besides those of the pools.
    [[nodiscard]] std::uint64_t held() const { return arena.held() + transfer.held() + upload_transfer.held(); }

    static constexpr std::uint64_t kMostForHost = std::uint64_t{4} << 30;

    // In order of construction. Uploads have a timeline of their own where the device has a queue for them.
    std::shared_ptr<const LogicalDevice> device;
    std::shared_ptr<Timeline> timeline, upload_timeline;
    Pools pools;
    std::uint64_t for_host;  // bytes of pinned memory that results may be left in
    Workers workers;
    Arena arena;
    Kernels kernels;
    Stream stream;
    Transfer transfer;
    Stream upload_stream;
    Transfer upload_transfer;
    Recorder recorder;
};

}  // namespace vkrnn::vk
