// Implements vkrnn::Device with CUDA's driver API. Each call is ordered on a stream: see vkrnn/cuda.h.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "cuda/kernels/cublaslt_products.h"
#include "cuda/kernels/modules.h"
#include "cuda/memory/cuda_memory.h"
#include "cuda/run/side_streams.h"
#include "plan/plan_cache.h"
#include "run/failed_waits.h"
#include "vkrnn/device.h"

namespace vkrnn::cuda {

class CudaDevice final : public Device {
public:
    // `ordinal` is the device's number in the driver. Throws DeviceError if the driver cannot be used.
    CudaDevice(int ordinal, Profile profile, StrategyChoice fixed, Tuning tuning);
    ~CudaDevice() override;
    CudaDevice(const CudaDevice&) = delete;
    CudaDevice& operator=(const CudaDevice&) = delete;

    [[nodiscard]] int ordinal() const { return ordinal_; }
    [[nodiscard]] const Profile& profile() const override { return profile_; }
    std::shared_ptr<const Plan> plan(const Spec& spec) override;
    [[nodiscard]] const StrategyChoice& fixed() const override { return fixed_; }
    void require_room(const Plan& plan, std::uint64_t bytes, std::string_view label) override;
    std::shared_ptr<Storage> allocate(std::uint64_t bytes, bool host_writes) override;
    std::shared_ptr<Storage> allocate_for_host(std::uint64_t bytes) override;
    void run(const std::shared_ptr<const Plan>& plan, std::span<const InputLocation> inputs,
             std::span<const ResultLocation> results, bool wait, std::string_view label, const Poll& poll) override;
    void upload(const ResultLocation& to, const void* from, std::uint64_t bytes, const Poll& poll) override;
    void download(void* to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) override;
    void copy(const ResultLocation& to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) override;
    void clear(const std::shared_ptr<Storage>& to, const Poll& poll) override;
    void wait(const Storage& storage, const Poll& poll) override;
    void synchronize(const Poll& poll) override;
    [[nodiscard]] Statistics statistics() const override;
    void close() override;
    [[nodiscard]] bool closed() const override { return closed_; }
    [[nodiscard]] bool lost() const override { return lost_; }
    void lose_for_test() override { lose_next_ = true; }

    // See vkrnn/cuda.h.
    std::shared_ptr<Storage> borrow(Address address, std::uint64_t bytes, std::function<void()> release);
    Address lend(Storage& storage, Stream stream);
    // See is_usable_cuda_device().
    [[nodiscard]] bool is_usable() const;
    // See cuda_compiler_key().
    [[nodiscard]] std::string compiler_key() const;
    void follow(Stream other);

private:
    // What an open device works with. Calls keep it while they run.
    struct Session {
        Session(DeviceNumber device, int major, int minor, const std::string& name)
            : memory(std::make_shared<Memory>(device)), failed_waits(memory->failed_waits(), name) {
            const Current current(memory->context());
            modules = std::make_unique<Modules>(major, minor,
                                                attribute_of(device, DeviceAttribute::max_launch_shared_memory));
        }
        ~Session() {
            try {
                const Current current(memory->context());
                modules.reset();
                products.reset();
                side_streams.reset();
            } catch (const DriverError&) {     // the driver has already shut down
            } catch (const std::exception&) {  // this is a forked process
            }
        }
        Session(const Session&) = delete;
        Session& operator=(const Session&) = delete;

        std::shared_ptr<Memory> memory;
        FailedWaits failed_waits;
        std::unique_ptr<Modules> modules;
        std::unique_ptr<Products> products = std::make_unique<Products>();
        std::unique_ptr<SideStreams> side_streams = std::make_unique<SideStreams>();
    };
    // A submitted call that may still run.
    struct Pending {
        Event start{}, end{};
        std::string prefix;  // begins messages about the call
    };

    [[nodiscard]] std::shared_ptr<Session> usable_session(const std::string& prefix) const;
    // Runs the body in the device's context and translates the driver's errors.
    void in_context(const std::string& prefix, const std::function<void(Session&, Stream)>& body);
    // Throws a MemoryError. `needs` is the beginning of its message: "[lstm] the call needs ".
    [[noreturn]] void throw_no_room(const std::string& needs, std::uint64_t bytes, const Session& session) const;
    // Waits for everything that was submitted to the stream.
    static void wait_for(Stream stream, const Poll& poll);
    [[noreturn]] void fail(const std::string& prefix);
    // Keeps the events of a failed call for later calls.
    void give_back(const Pending& pending);
    // The state mutex must be locked in these.
    Event event() const;
    void retire() const;

    const int ordinal_;
    const Profile profile_;
    const StrategyChoice fixed_;
    const Tuning tuning_;
    const long process_;  // the process that opened the device; forked ones cannot use it
    PlanCache plans_;
    std::atomic<bool> closed_ = false, lost_ = false, lose_next_ = false;

    mutable ForkSafeMutex state_mutex_{ForkSafeMutex::Kind::driver};  // guards the members below
    std::shared_ptr<Session> session_;                                // null once closed
    std::weak_ptr<const Memory> memory_;
    std::string failure_;  // how the device was lost
    mutable std::deque<Pending> pending_;
    mutable std::vector<Event> events_;  // unused ones
    mutable Statistics statistics_;
};

}  // namespace vkrnn::cuda
