#include "vk/run/session.h"

#include <algorithm>
#include <mutex>

#include "base/host_memory.h"

namespace vkrnn::vk {
namespace {

constexpr std::uint64_t kMostForHost = std::uint64_t{4} << 30;

std::shared_ptr<const LogicalDevice> opened(SelectedDevice selected) {
    const std::lock_guard lock(loader_mutex());
    return std::make_shared<LogicalDevice>(std::move(selected));
}

}  // namespace

Session::Session(SelectedDevice selected)
    : device(opened(std::move(selected))),
      timeline(std::make_shared<Timeline>(device, device->compute_queue())),
      upload_timeline(&device->upload_queue() == &device->compute_queue()
                          ? timeline
                          : std::make_shared<Timeline>(device, device->upload_queue())),
      shared_word(allocate(*device, Use::reports, sizeof(std::uint32_t))),
      failed_waits(*reinterpret_cast<std::uint32_t*>(shared_word.whole.host), device->profile().name),
      pools{std::make_shared<Pool>(timeline, Use::device), std::make_shared<Pool>(timeline, Use::download),
            shared_word.whole},
      for_host(std::min(kMostForHost, host_memory_available() / 8)),
      arena(*device),
      pipelines(*timeline),
      stream(*timeline),
      transfer(*timeline, stream, workers),
      upload_stream(*upload_timeline),
      upload_transfer(*upload_timeline, upload_stream, workers),
      recorder(*pools.device, pipelines, stream) {}

Session::~Session() {
    timeline->settle(timeline->submitted());
    upload_timeline->settle(upload_timeline->submitted());
    pipelines.save(false);
}

}  // namespace vkrnn::vk
