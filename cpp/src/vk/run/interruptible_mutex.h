// A mutex that can be waited for until a poll asks to stop.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "run/poll.h"
#include "vkrnn/device.h"
#include "vkrnn/error.h"
#include "vkrnn/poll_interval.h"

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

    // Waits for the mutex. Throws what ask() throws, and DeviceError if this thread holds the mutex already: a call's
    // poll runs signal handlers, which may make another call.
    Lock lock(const std::string& prefix, const Poll& poll) {
        std::unique_lock lock(mutex_);
        if (taken_ && holder_ == std::this_thread::get_id()) {
            throw DeviceError(prefix +
                              "the device is busy with another call of this thread, which a signal interrupted");
        }
        while (!free_.wait_for(lock, poll_interval.load(), [this] { return !taken_; })) {
            lock.unlock();  // the poll may take another lock
            ask(poll);
            lock.lock();
        }
        taken_ = true;
        holder_ = std::this_thread::get_id();
        return Lock(*this);
    }

private:
    std::mutex mutex_;
    std::condition_variable free_;
    bool taken_ = false;
    std::thread::id holder_;  // valid while taken_ is true
};

}  // namespace vkrnn::vk
