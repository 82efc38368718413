// Implements vkrnn::Device on one logical device. Plans run one after the other.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "plan/plan_cache.h"
#include "vk/commands/command_stream.h"
#include "vk/device/context.h"
#include "vk/memory/storage.h"
#include "vk/run/interruptible_mutex.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

struct Session;

class Executor final : public Device {
public:
    // Throws vk::SystemError.
    Executor(SelectedDevice selected, StrategyChoice fixed, Tuning tuning);
    ~Executor() override;
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    [[nodiscard]] const Profile& profile() const override { return profile_; }
    // Also works on a closed or lost device, because planning only needs the profile.
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

private:
    // A submitted call that may still run.
    struct Pending {
        Point point;
        std::string prefix;  // begins messages about the call
        std::uint32_t timing_slot;
    };
    // Smaller requests are not checked: asking the driver how much memory is free costs more than a small call.
    static constexpr std::uint64_t kChecked = 16 << 20;

    void check_usable(const std::string& prefix) const;
    // Returns the session of a usable device; throws DeviceError otherwise.
    [[nodiscard]] std::shared_ptr<Session> usable_session(const std::string& prefix) const;
    // Returns the session to a caller that waits for earlier calls. If the device was lost, the error says how.
    [[nodiscard]] std::shared_ptr<Session> session_to_wait_for(const std::string& prefix) const;
    // Runs the body with the mutex locked, and translates the exceptions of Vulkan-Hpp.
    void with_lock(InterruptibleMutex& mutex, const std::string& prefix, const Poll& poll,
                   const std::function<void(Session&)>& body);
    void wait_for(const Timeline& timeline, Point point, const std::string& prefix, const Poll& poll);
    // Rethrows the current exception as one of the project's. The message about a lost device names the first
    // unfinished call.
    [[noreturn]] void fail(const std::string& prefix);
    // Removes finished calls and reads the timing of the last one. Requires state_mutex_.
    void retire(const Session& session) const;
    void wait_for_contents(const Session& session, const PoolStorage& storage, const Poll& poll);
    // Submits commands that read one storage and write the other.
    void submit_copy(PoolStorage& source, PoolStorage& target, const Poll& poll,
                     const std::function<void(const CommandStream&)>& record);

    const Profile profile_;
    const StrategyChoice fixed_;
    const Tuning tuning_;
    const long process_;  // the process that opened the device; forked ones cannot use it
    PlanCache plans_;
    InterruptibleMutex submit_mutex_;  // held while calls are recorded and submitted, and while results are copied
    InterruptibleMutex upload_mutex_;  // held while arrays are uploaded; locked before submit_mutex_
    std::atomic<bool> closed_ = false, lost_ = false, lose_next_ = false;

    // Guards the members below. A forked child does not lock it, because another thread of the parent may have had it.
    mutable std::mutex state_mutex_;
    std::shared_ptr<Session> session_;          // null once closed
    std::weak_ptr<const Pool> pool_, results_;  // arrays keep the pools alive after the session
    std::string failure_;                       // how the device was lost
    mutable std::deque<Pending> pending_;
    mutable Statistics statistics_;
};

}  // namespace vkrnn::vk
