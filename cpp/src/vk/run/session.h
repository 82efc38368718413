// A session owns everything that an open device works with. It ends when the device is closed. Arrays keep their pools
// alive after that.
#pragma once

#include <cstdint>
#include <memory>

#include "run/failed_waits.h"
#include "vk/commands/command_stream.h"
#include "vk/commands/recorder.h"
#include "vk/commands/transfer.h"
#include "vk/memory/arena.h"
#include "vk/memory/workers.h"
#include "vk/pipelines/pipelines.h"
#include "vk/run/binding.h"

namespace vkrnn::vk {

struct Session {
    // Throws vk::SystemError.
    explicit Session(SelectedDevice selected);
    // Waits for the device and writes the pipeline cache.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // These are thread-safe.
    [[nodiscard]] std::uint64_t submissions() const {
        return timeline->submitted() + (upload_timeline == timeline ? 0 : upload_timeline->submitted());
    }
    // Returns the bytes held outside of the pools.
    [[nodiscard]] std::uint64_t held() const { return arena.held() + transfer.held() + upload_transfer.held(); }

    // The order of members is the order of construction. Uploads have their own timeline if the device has a queue for
    // them; otherwise both pointers are equal.
    std::shared_ptr<const LogicalDevice> device;
    std::shared_ptr<Timeline> timeline, upload_timeline;
    Allocation shared_word;
    FailedWaits failed_waits;
    Pools pools;
    std::uint64_t for_host;  // limit, in bytes, of pinned memory for results
    Workers workers;
    Arena arena;
    Pipelines pipelines;
    CommandStream stream;
    Transfer transfer;
    CommandStream upload_stream;
    Transfer upload_transfer;
    Recorder recorder;
};

}  // namespace vkrnn::vk
