// Streams of the device on which the lanes of a wavefront run beside the caller's stream.
#pragma once

#include <cstddef>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "cuda/libraries/driver.h"

namespace vkrnn::cuda {

// Thread-safe. The context must be current in all functions, and in those of leases.
class SideStreams {
public:
    SideStreams() = default;
    ~SideStreams();
    SideStreams(const SideStreams&) = delete;
    SideStreams& operator=(const SideStreams&) = delete;

    struct Side {
        Stream stream{};
        Event done{};
    };

    // The streams of one call's lanes. They begin after what the caller's stream has now; what comes later on that
    // stream waits for all of them once the lease has ended. Lane 0 runs on the caller's stream itself.
    class Lease {
    public:
        // Throws DriverError.
        Lease(SideStreams& owner, Stream stream, std::size_t lanes);
        ~Lease();
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;

        [[nodiscard]] Stream stream(std::size_t lane) const { return lane == 0 ? stream_ : sides_[lane].stream; }
        // record() notes what a lane has so far; wait() makes a lane wait for what another one noted last.
        void record(std::size_t lane) const;
        void wait(std::size_t lane, std::size_t other) const;

    private:
        SideStreams& owner_;
        Stream stream_;
        std::vector<Side> sides_;  // one for each lane; of the first, only the event is used
    };

private:
    // Returns a stream that no other call uses. If the caller's stream is being captured into a graph, the same capture
    // may have it already.
    Side take(unsigned long long capture);
    void give_back(const std::vector<Side>& sides) noexcept;

    ForkSafeMutex mutex_{ForkSafeMutex::Kind::driver};
    std::vector<Side> free_;
};

}  // namespace vkrnn::cuda
