// Replaces operator new and delete, to make C++ allocations fail and to count them. Include it in one source of an
// executable.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "base/system.h"

namespace vkrnn::test {

class Allocations {
public:
    enum class Failing : std::uint8_t { one, all_from_then_on };
    enum class Threads : std::uint8_t { all, this_one };

    // Makes the n-th allocation from now on fail and, on request, all later ones, in all threads or in this one.
    static void arm(std::int64_t n, Failing failing, Threads threads) {
        failing_ = failing;
        threads_ = threads;
        armed_here() = true;
        made_ = 0;
        first_failing_ = n;
    }
    // Stops this. Returns whether an allocation has failed.
    static bool disarm() {
        const std::int64_t n = first_failing_.exchange(0);
        armed_here() = false;
        return made_ >= n;
    }
    // Returns the number of live allocations.
    static std::int64_t existing() { return existing_; }

    // Excludes the thread's allocations from the count during the object's lifetime.
    class Ignored {
    public:
        Ignored() : before_(ignored()) { ignored() = true; }
        ~Ignored() { ignored() = before_; }
        Ignored(const Ignored&) = delete;
        Ignored& operator=(const Ignored&) = delete;

    private:
        const bool before_;
    };

    static void* allocate(std::size_t bytes, std::size_t alignment) {
        if (!ignored() && fails()) throw std::bad_alloc();
        const std::size_t whole = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
        void* const data = system::allocate_memory(alignment, whole);
        if (data == nullptr) throw std::bad_alloc();
        if (!ignored()) ++existing_;
        return data;
    }
    static void release(void* data) noexcept {
        if (data != nullptr && !ignored()) --existing_;
        system::free_memory(data);
    }

private:
    static bool& ignored() {
        static thread_local bool value = false;
        return value;
    }
    static bool& armed_here() {
        static thread_local bool value = false;
        return value;
    }
    static bool fails() {
        const std::int64_t first = first_failing_;
        if (first == 0 || (threads_ == Threads::this_one && !armed_here())) return false;
        const std::int64_t n = ++made_;
        return failing_ == Failing::one ? n == first : n >= first;
    }

    static inline std::atomic<Failing> failing_ = Failing::one;
    static inline std::atomic<Threads> threads_ = Threads::all;
    static inline std::atomic<std::int64_t> made_ = 0, first_failing_ = 0, existing_ = 0;
};

}  // namespace vkrnn::test

void* operator new(std::size_t bytes) {
    return vkrnn::test::Allocations::allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return vkrnn::test::Allocations::allocate(bytes, static_cast<std::size_t>(alignment));
}
// The address sanitizer's default forms of these operators do not call the ones above.
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
    try {
        return vkrnn::test::Allocations::allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void operator delete(void* data, const std::nothrow_t& /*tag*/) noexcept { vkrnn::test::Allocations::release(data); }
void operator delete(void* data) noexcept { vkrnn::test::Allocations::release(data); }
void operator delete(void* data, std::size_t) noexcept { vkrnn::test::Allocations::release(data); }
void operator delete(void* data, std::align_val_t) noexcept { vkrnn::test::Allocations::release(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { vkrnn::test::Allocations::release(data); }
