#include "cuda/run/side_streams.h"

#include <algorithm>
#include <mutex>

namespace vkrnn::cuda {
namespace {

// Returns the number of the capture that a stream takes part in; 0 if it is not being captured.
unsigned long long capture_of(Stream stream) {
    if (stream == Stream::legacy) return 0;
    int status = 0;
    unsigned long long capture = 0;
    check(driver().StreamGetCaptureInfo(stream, &status, &capture, nullptr, nullptr, nullptr));
    return status == 0 ? 0 : capture;
}

}  // namespace

SideStreams::~SideStreams() {
    const Functions* const cu = driver_to_clean_up();
    if (cu == nullptr) return;
    for (const Side& side : free_) {
        cu->EventDestroy(side.done);
        cu->StreamDestroy(side.stream);
    }
}

SideStreams::Side SideStreams::take(unsigned long long capture) {
    {
        const std::lock_guard lock(mutex_);
        const auto usable = [&](const Side& side) {
            const unsigned long long its = capture_of(side.stream);
            return its == 0 || its == capture;
        };
        if (const auto found = std::ranges::find_if(free_, usable); found != free_.end()) {
            const Side side = *found;
            free_.erase(found);
            return side;
        }
    }
    Side made;
    check(driver().StreamCreate(&made.stream, StreamFlags::non_blocking));
    check(driver().EventCreate(&made.done, EventFlags::untimed));
    return made;
}

void SideStreams::give_back(const std::vector<Side>& sides) noexcept {
    const std::lock_guard lock(mutex_);
    free_.insert(free_.end(), sides.begin(), sides.end());
}

SideStreams::Lease::Lease(SideStreams& owner, Stream stream, std::size_t lanes) : owner_(owner), stream_(stream) {
    const unsigned long long capture = capture_of(stream);
    try {
        while (sides_.size() < lanes) sides_.push_back(owner.take(capture));
        record(0);
        for (std::size_t lane = 1; lane < lanes; ++lane) wait(lane, 0);
    } catch (...) {
        owner.give_back(sides_);
        throw;
    }
}

// The caller's stream waits also after a failure, because it frees the call's memory.
SideStreams::Lease::~Lease() {
    const Functions& cu = driver();
    for (std::size_t lane = 1; lane < sides_.size(); ++lane) {
        cu.EventRecord(sides_[lane].done, sides_[lane].stream);
        cu.StreamWaitEvent(stream_, sides_[lane].done, 0);
    }
    owner_.give_back(sides_);
}

void SideStreams::Lease::record(std::size_t lane) const {
    check(driver().EventRecord(sides_[lane].done, stream(lane)));
}

void SideStreams::Lease::wait(std::size_t lane, std::size_t other) const {
    check(driver().StreamWaitEvent(stream(lane), sides_[other].done, 0));
}

}  // namespace vkrnn::cuda
