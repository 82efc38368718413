// Copies memory with several threads, because one alone is slower than the bus to a device.
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
    // Uses this many threads in addition to the caller's. The default saturates the memory bandwidth.
    explicit Workers(std::size_t helpers = usual_helpers()) : helpers_(helpers) {}
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    // Copies like memcpy. Large copies are shared between threads, which the first such copy starts, as far as the
    // system allows. Thread-safe.
    void copy(void* to, const void* from, std::uint64_t bytes);

private:
    static std::size_t usual_helpers();
    void start();
    void work(std::size_t index, std::uint64_t done);  // `done`: the last job before the thread started
    void copy_share(std::size_t index) const;

    const std::size_t helpers_;
    std::mutex one_at_a_time_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;  // guards the members below
    std::condition_variable begin_, end_;
    std::uint64_t job_ = 0;
    std::size_t busy_ = 0;
    bool stop_ = false;
    std::byte* to_ = nullptr;
    const std::byte* from_ = nullptr;
    std::uint64_t bytes_ = 0;
};

}  // namespace vkrnn::vk
