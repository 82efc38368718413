// A mutex whose wait may be interrupted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn::vk {

class Turn {
public:
    // Held as long as the object lives.
    class Held {
    public:
        explicit Held(Turn& turn) : turn_(turn) {}
        ~Held() {
            {
                const std::lock_guard lock(turn_.mutex_);
                turn_.taken_ = false;
            }
            turn_.free_.notify_one();
        }
        Held(const Held&) = delete;
        Held& operator=(const Held&) = delete;

    private:
        Turn& turn_;
    };

    // Throws Interrupted where the poll says so.
    Held take(const Poll& poll) {
        std::unique_lock lock(mutex_);
        while (!free_.wait_for(lock, std::chrono::milliseconds(20), [this] { return !taken_; })) {
            lock.unlock();  // the poll may take another lock
            if (poll && poll()) {
                throw Interrupted();
            }
            lock.lock();
        }
        taken_ = true;
        return Held(*this);
    }

private:
    std::mutex mutex_;
    std::condition_variable free_;
    bool taken_ = false;
};

}  // namespace vkrnn::vk
