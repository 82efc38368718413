#include "fork_safe_mutex.h"

#include <pthread.h>

#include <algorithm>
#include <vector>

namespace vkrnn {
namespace {

struct Registry {
    std::mutex mutex;
    std::vector<ForkSafeMutex*> members;

    void lock() {
        mutex.lock();
        for (ForkSafeMutex* one : members) one->lock();
    }

    void unlock() {
        for (ForkSafeMutex* one : members) one->unlock();
        mutex.unlock();
    }
};

// The registry is never destroyed, because objects that live until the process ends have such mutexes.
Registry& registry() {
    static Registry* const instance = [] {
        auto* const made = new Registry;  // NOLINT(cppcoreguidelines-owning-memory)
        const auto unlock = [] { registry().unlock(); };
        pthread_atfork([] { registry().lock(); }, unlock, unlock);
        return made;
    }();
    return *instance;
}

}  // namespace

ForkSafeMutex::ForkSafeMutex() {
    Registry& mutexes = registry();
    const std::lock_guard lock(mutexes.mutex);
    mutexes.members.push_back(this);
}

ForkSafeMutex::~ForkSafeMutex() {
    Registry& mutexes = registry();
    const std::lock_guard lock(mutexes.mutex);
    std::erase(mutexes.members, this);
}

}  // namespace vkrnn
