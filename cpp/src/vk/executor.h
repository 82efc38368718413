// The class behind vkrnn::Device: one logical device that runs one plan after the other.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "context.h"
#include "plan_cache.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

class Executor final : public Device {
public:
    // Throws vk::SystemError.
    Executor(std::shared_ptr<const Context> context, Context::Candidate candidate, Flavour flavour);
    ~Executor() override;
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    [[nodiscard]] const Profile& profile() const override { return profile_; }
    [[nodiscard]] const Flavour& flavour() const override { return flavour_; }
    // Needs no device: a plan can be had, and looked at, of a device that was closed or lost.
    std::shared_ptr<const Plan> plan(const Spec& spec) override;
    void run(const Plan& plan, std::span<const void* const> inputs, std::span<void* const> results,
             std::string_view label, const Poll& poll) override;
    [[nodiscard]] Statistics statistics() const override;
    void close() override;
    [[nodiscard]] bool closed() const override { return closed_; }
    [[nodiscard]] bool lost() const override { return lost_; }
    void lose_for_test() override { lose_next_ = true; }

private:
    struct Work;

    void check_usable(const std::string& prefix) const;
    std::unique_lock<std::timed_mutex> lock(const Poll& poll);
    void run_locked(const Plan& plan, std::span<const void* const> inputs, std::span<void* const> results,
                    std::string_view label, const std::string& prefix, const Poll& poll);
    void count_call(double host_seconds, double device_seconds, const Plan* finished);
    void count_held();

    const Profile profile_;
    const Flavour flavour_;
    const long process_;  // that opened the device: it is of no use in a fork
    PlanCache plans_;
    std::timed_mutex mutex_;      // held by the call that runs
    std::unique_ptr<Work> work_;  // null once closed
    std::atomic<bool> closed_ = false, lost_ = false, lose_next_ = false;
    mutable std::mutex statistics_mutex_;
    Statistics statistics_;
};

}  // namespace vkrnn::vk
