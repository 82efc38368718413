// A value that is made at its first use, by any thread, and never destroyed.
#pragma once

#include <atomic>
#include <memory>

namespace vkrnn {

// Unlike a function's static variable, it has no lock: if the process were forked while a thread made a static
// variable, the child would wait for that thread for ever. Several threads may make the value at the same time. The
// first one to finish sets it, and what the others made is destroyed.
template <class T>
class Lazy {
public:
    template <class Make>
    const T& get(Make make) {
        if (const T* const set = value_.load()) return *set;
        auto made = std::make_unique<const T>(make());
        const T* set = nullptr;
        return value_.compare_exchange_strong(set, made.get()) ? *made.release() : *set;
    }

private:
    std::atomic<const T*> value_ = nullptr;
};

}  // namespace vkrnn
