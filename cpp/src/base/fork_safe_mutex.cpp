#include "fork_safe_mutex.h"

#include <algorithm>
#include <vector>

#include "system.h"
#include "vkrnn/fork.h"

namespace vkrnn {
namespace {

thread_local int held = 0;  // how many times this thread has locked all mutexes

struct Registry {
    std::mutex mutex;
    std::vector<ForkSafeMutex*> members;  // in the order in which a fork locks them

    void lock() {
        if (held++ > 0) return;
        mutex.lock();
        for (ForkSafeMutex* one : members) one->lock();
    }

    void unlock() {
        if (--held > 0) return;
        for (ForkSafeMutex* one : members) one->unlock();
        mutex.unlock();
    }
};

// Never destroyed, because objects that live until the process ends have such mutexes.
Registry& registry() {
    static Registry* const instance = [] {
        auto* const made = new Registry;  // NOLINT(cppcoreguidelines-owning-memory)
        const auto unlock = [] { registry().unlock(); };
        system::at_fork([] { registry().lock(); }, unlock, unlock);
        return made;
    }();
    return *instance;
}

}  // namespace

void hold_before_fork() { registry().lock(); }

void release_after_fork() { registry().unlock(); }

ForkSafeMutex::ForkSafeMutex(Kind kind) {
    Registry& mutexes = registry();
    const std::lock_guard lock(mutexes.mutex);
    mutexes.members.insert(kind == Kind::outer ? mutexes.members.begin() : mutexes.members.end(), this);
}

ForkSafeMutex::~ForkSafeMutex() {
    Registry& mutexes = registry();
    const std::lock_guard lock(mutexes.mutex);
    std::erase(mutexes.members, this);
}

}  // namespace vkrnn
