// A mutex whose wait may be interrupted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn::vk {

class InterruptibleMutex {
public:
    // Holds the mutex as long as the object lives.
    class Lock {
    public:
        explicit Lock(InterruptibleMutex& mutex) : mutex_(mutex) {}
        ~Lock() {
            {
                const std::lock_guard lock(mutex_.mutex_);
                mutex_.taken_ = false;
            }
            mutex_.free_.notify_one();
        }
        Lock(const Lock&) = delete;
        Lock& operator=(const Lock&) = delete;

    private:
        InterruptibleMutex& mutex_;
    };

    // Waits for the mutex. Throws Interrupted if the poll returns true.
    Lock lock(const Poll& poll) {
        std::unique_lock lock(mutex_);
        while (!free_.wait_for(lock, std::chrono::milliseconds(20), [this] { return !taken_; })) {
            lock.unlock();  // the poll may take another lock
            if (poll && poll()) {
                throw Interrupted();
            }
            lock.lock();
        }
        taken_ = true;
        return Lock(*this);
    }

private:
    std::mutex mutex_;
    std::condition_variable free_;
    bool taken_ = false;
};

}  // namespace vkrnn::vk
