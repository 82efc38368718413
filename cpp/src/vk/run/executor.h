// The class behind vkrnn::Device: one logical device that runs one plan after the other.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "plan/cache.h"
#include "vk/commands/stream.h"
#include "vk/device/context.h"
#include "vk/memory/storage.h"
#include "vk/run/interruptible_mutex.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

struct Work;

class Executor final : public Device {
public:
    // Throws vk::SystemError.
    Executor(Seat seat, StrategyChoice fixed);
    ~Executor() override;
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    [[nodiscard]] const Profile& profile() const override { return profile_; }
    // Needs no device: a plan can be had, and looked at, of a device that was closed or lost.
    std::shared_ptr<const Plan> plan(const Spec& spec) override;
    void require_room(const Plan& plan, std::uint64_t bytes, std::string_view label) override;
    std::shared_ptr<Storage> allocate(std::uint64_t bytes, bool host_writes) override;
    std::shared_ptr<Storage> allocate_for_host(std::uint64_t bytes) override;
    void run(const std::shared_ptr<const Plan>& plan, std::span<const InputOperand> inputs,
             std::span<const ResultOperand> results, bool wait, std::string_view label, const Poll& poll) override;
    void upload(const ResultOperand& to, const void* from, std::uint64_t bytes, const Poll& poll) override;
    void download(void* to, const InputOperand& from, std::uint64_t bytes, const Poll& poll) override;
    void copy(const ResultOperand& to, const InputOperand& from, std::uint64_t bytes, const Poll& poll) override;
    void clear(const std::shared_ptr<Storage>& to, const Poll& poll) override;
    void wait(const Storage& storage, const Poll& poll) override;
    void synchronize(const Poll& poll) override;
    [[nodiscard]] Statistics statistics() const override;
    void close() override;
    [[nodiscard]] bool closed() const override { return closed_; }
    [[nodiscard]] bool lost() const override { return lost_; }
    void lose_for_test() override { lose_next_ = true; }

private:
    // A call that may not be done yet.
    struct Pending {
        Point point;
        std::string prefix;  // of messages about it
        std::uint32_t timing;
    };

    void check_usable(const std::string& prefix) const;
    [[nodiscard]] std::shared_ptr<Work> work(const std::string& prefix) const;
    // The same; of a lost device it throws how it was lost.
    [[nodiscard]] std::shared_ptr<Work> work_to_wait_for(const std::string& prefix) const;
    void in_turn(Turn& turn, const std::string& prefix, const Poll& poll, const std::function<void(Work&)>& body);
    void wait_for(const Timeline& timeline, Point point, const std::string& prefix, const Poll& poll);
    [[noreturn]] void fail(const std::string& prefix);
    void retire(const Work& work) const;
    void wait_for_contents(const Work& work, const PoolStorage& storage, const Poll& poll);
    void submit_copy(PoolStorage& source, PoolStorage& target, const Poll& poll,
                     const std::function<void(const Stream&)>& record);

    const Profile profile_;
    const StrategyChoice fixed_;
    const long process_;  // that opened the device: it is of no use in a fork
    PlanCache plans_;
    Turn turn_;         // held by whoever records and submits calls, and copies through their rings
    Turn upload_turn_;  // the same of uploads; taken first
    std::atomic<bool> closed_ = false, lost_ = false, lose_next_ = false;

    mutable std::mutex mutex_;                  // of what follows
    std::shared_ptr<Work> work_;                // null once closed
    std::weak_ptr<const Pool> pool_, results_;  // as long as anybody has arrays
    std::string failure_;                       // how the device was lost
    mutable std::deque<Pending> pending_;
    mutable Statistics statistics_;
};

}  // namespace vkrnn::vk
