// Copies between host memory and memory that the host cannot map, through rings of pinned memory. The processor copies
// one part while the device copies another.
#pragma once

#include <cstdint>

#include "vk/commands/command_stream.h"
#include "vk/memory/ring.h"
#include "vk/memory/workers.h"

namespace vkrnn::vk {

class Transfer {
public:
    // The arguments must outlive the transfer.
    Transfer(Timeline& timeline, CommandStream& stream, Workers& workers)
        : timeline_(timeline),
          stream_(stream),
          workers_(workers),
          up_(timeline, Use::upload),
          down_(timeline, Use::download) {}

    // Copies from the host. Records into the stream's open command buffer, or opens one, and submits it whenever it
    // holds a part. The last part stays in the open command buffer: call submitted() with its point. Throws like
    // Ring::reserve.
    void upload(const Slice& to, const void* from, const Poll& poll);
    void submitted(Point point);

    // Returns the memory that a failed call reserved, once the device is done with what was submitted. Call it before a
    // call's first upload.
    void discard();

    // Copies to the host and waits until that is done. No command buffer may be open. Throws like Ring::reserve.
    void download(void* to, const Slice& from, const Poll& poll);

    [[nodiscard]] std::uint64_t held() const { return up_.held() + down_.held(); }

private:
    Timeline& timeline_;
    CommandStream& stream_;
    Workers& workers_;
    Ring up_, down_;
    std::uint64_t recorded_ = 0;  // bytes of uploads in the open command buffer
};

}  // namespace vkrnn::vk
