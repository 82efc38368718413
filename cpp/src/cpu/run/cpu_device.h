// The CPU as a device. It runs plans whose steps are the kernels of kernel.h, each on a team of threads. Calls are
// synchronous.
#pragma once

#include <atomic>
#include <memory>

#include "base/fork_safe_mutex.h"
#include "cpu/memory/cpu_memory.h"
#include "cpu/work/kernel.h"
#include "plan/plan_cache.h"
#include "vkrnn/device.h"

namespace vkrnn::cpu {

// Describes the CPU without opening it. Throws DeviceError if VKRNN_CPU_TARGET names no instruction set.
Profile profile();

class CpuDevice final : public Device {
public:
    explicit CpuDevice(StrategyChoice fixed);

    [[nodiscard]] const Profile& profile() const override { return profile_; }
    std::shared_ptr<const Plan> plan(const Spec& spec) override;
    [[nodiscard]] const StrategyChoice& fixed() const override { return fixed_; }
    void require_room(const Plan& plan, std::uint64_t bytes, std::string_view label) override;
    std::shared_ptr<Storage> allocate(std::uint64_t bytes, bool host_writes) override;
    std::shared_ptr<Storage> allocate_for_host(std::uint64_t bytes) override;
    void run(const std::shared_ptr<const Plan>& plan, std::span<const InputLocation> inputs,
             std::span<const ResultLocation> results, bool wait, std::string_view label, const Poll& poll) override;
    std::unique_ptr<StreamRunner> make_stream_runner(std::span<const StreamPart> layers, unsigned threads) override;
    void upload(const ResultLocation& to, const void* from, std::uint64_t bytes, const Poll& poll) override;
    void download(void* to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) override;
    void copy(const ResultLocation& to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) override;
    void clear(const std::shared_ptr<Storage>& storage, const Poll& poll) override;
    void wait(const Storage& storage, const Poll& poll) override;
    void synchronize(const Poll& poll) override;
    [[nodiscard]] Statistics statistics() const override;
    void close() override;
    [[nodiscard]] bool closed() const override { return closed_; }
    [[nodiscard]] bool lost() const override { return false; }
    void lose_for_test() override;

private:
    void check_usable(const std::string& prefix) const;
    // Returns the bytes that the system can provide, including the pool's unused memory.
    [[nodiscard]] std::uint64_t free_memory() const;
    // Throw a MemoryError that names the bytes that a call or an array needs.
    [[noreturn]] void throw_no_room(const std::string& prefix, std::uint64_t bytes) const;
    [[noreturn]] void throw_no_array(std::uint64_t bytes) const;

    const Target& target_;
    const Profile profile_;
    const StrategyChoice fixed_;
    PlanCache plans_;
    const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
    std::atomic<bool> closed_ = false;

    mutable ForkSafeMutex mutex_;
    Statistics statistics_;
};

}  // namespace vkrnn::cpu
