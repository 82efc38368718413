#include "fork_safe_mutex.h"

#include <algorithm>
#include <array>
#include <vector>

#include "system.h"
#include "vkrnn/fork.h"

namespace vkrnn {

// The mutexes that a fork locks at the same time.
class ForkedMutexes {
public:
    explicit ForkedMutexes(std::size_t number) : number_(number) {}

    // Returns whether this thread holds all of them for a fork.
    [[nodiscard]] bool held() const { return times_held.at(number_) > 0; }

    void hold() {
        if (times_held.at(number_)++ > 0) return;
        mutex_.lock();
        for (ForkSafeMutex* one : members_) one->mutex_.lock();
    }

    void release() {
        if (--times_held.at(number_) > 0) return;
        for (ForkSafeMutex* one : members_) one->mutex_.unlock();
        mutex_.unlock();
    }

    void add(ForkSafeMutex& one, bool first) {
        const auto insert = [&] { members_.insert(first ? members_.begin() : members_.end(), &one); };
        if (held()) {
            insert();
            one.mutex_.lock();
        } else {
            const std::lock_guard lock(mutex_);
            insert();
        }
    }

    void remove(ForkSafeMutex& one) {
        if (held()) {
            std::erase(members_, &one);
            one.mutex_.unlock();
        } else {
            const std::lock_guard lock(mutex_);
            std::erase(members_, &one);
        }
    }

private:
    // How many times this thread has held each group.
    static thread_local constinit std::array<int, 2> times_held;

    const std::size_t number_;
    std::mutex mutex_;                     // guards the list
    std::vector<ForkSafeMutex*> members_;  // in the order in which a fork locks them
};

thread_local constinit std::array<int, 2> ForkedMutexes::times_held{};

namespace {

// Those that a fork locks before and after drivers' own handlers run.
struct Groups {
    ForkedMutexes early{0}, late{1};
};

// Never destroyed, because objects that live until the process ends have such mutexes.
Groups& groups() {
    static Groups* const instance = [] {
        auto* const made = new Groups;  // NOLINT(cppcoreguidelines-owning-memory)
        const auto hold = [] {
            groups().early.hold();
            groups().late.hold();
        };
        const auto release = [] {
            groups().late.release();
            groups().early.release();
        };
        system::at_fork(hold, release, release);
        return made;
    }();
    return *instance;
}

}  // namespace

void hold_before_fork() { groups().early.hold(); }

void release_after_fork() { groups().early.release(); }

ForkSafeMutex::ForkSafeMutex(Kind kind) : all_(kind == Kind::inner ? groups().late : groups().early) {
    all_.add(*this, kind == Kind::outer);
}

ForkSafeMutex::~ForkSafeMutex() { all_.remove(*this); }

void ForkSafeMutex::lock() {
    if (!all_.held()) mutex_.lock();
}

bool ForkSafeMutex::try_lock() { return all_.held() || mutex_.try_lock(); }

void ForkSafeMutex::unlock() {
    if (!all_.held()) mutex_.unlock();
}

}  // namespace vkrnn
