// Threads that copy: one alone does not keep up with a bus.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace vkrnn::vk {

class Workers {
public:
    Workers() = default;
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    // memcpy, by several threads where there is much to copy. They are started at the first such copy. Thread-safe.
    void copy(void* to, const void* from, std::uint64_t bytes);

private:
    void start();
    void work(std::size_t index);
    void copy_share(std::size_t index) const;

    std::mutex one_at_a_time_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;  // of what follows
    std::condition_variable begin_, end_;
    std::uint64_t job_ = 0;
    std::size_t busy_ = 0;
    bool stop_ = false;
    std::byte* to_ = nullptr;
    const std::byte* from_ = nullptr;
    std::uint64_t bytes_ = 0;
};

}  // namespace vkrnn::vk
