#include "vk/memory/workers.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>

namespace vkrnn::vk {
namespace {

constexpr std::uint64_t kLarge = 2 << 20;  // smaller copies end before other threads wake up
constexpr std::uint64_t kPage = 4096;

}  // namespace

// Half of the processor's threads saturate the memory bandwidth.
std::size_t Workers::usual_helpers() {
    return std::clamp<std::size_t>(std::thread::hardware_concurrency() / 2, 1, 8) - 1;
}

Workers::~Workers() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    begin_.notify_all();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void Workers::start() {
    try {
        while (threads_.size() < helpers_) {
            threads_.emplace_back([this, index = threads_.size() + 1, done = job_] { work(index, done); });
        }
    } catch (const std::system_error&) {  // no further threads are allowed
    } catch (const std::bad_alloc&) {     // no memory for a thread
    }
}

void Workers::copy(void* to, const void* from, std::uint64_t bytes) {
    const std::unique_lock one(one_at_a_time_, std::try_to_lock);
    if (bytes < kLarge || !one.owns_lock() || helpers_ == 0) {
        if (bytes != 0) {  // empty arrays may be at null, which memcpy does not allow
            std::memcpy(to, from, bytes);
        }
        return;
    }
    if (threads_.empty()) {
        start();
    }
    {
        const std::lock_guard lock(mutex_);
        to_ = static_cast<std::byte*>(to);
        from_ = static_cast<const std::byte*>(from);
        bytes_ = bytes;
        busy_ = threads_.size();
        ++job_;
    }
    begin_.notify_all();
    copy_share(0);
    std::unique_lock lock(mutex_);
    end_.wait(lock, [this] { return busy_ == 0; });
}

void Workers::work(std::size_t index, std::uint64_t done) {
    std::unique_lock lock(mutex_);
    while (true) {
        begin_.wait(lock, [&] { return stop_ || job_ != done; });
        if (stop_) {
            return;
        }
        done = job_;
        lock.unlock();
        copy_share(index);
        lock.lock();
        if (--busy_ == 0) {
            end_.notify_one();
        }
    }
}

void Workers::copy_share(std::size_t index) const {
    const std::uint64_t shares = threads_.size() + 1;
    const std::uint64_t each = ((bytes_ + shares - 1) / shares + kPage - 1) / kPage * kPage;
    const std::uint64_t first = std::min(bytes_, index * each);
    std::memcpy(to_ + first, from_ + first, std::min(each, bytes_ - first));
}

}  // namespace vkrnn::vk
