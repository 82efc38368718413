// Teams with any number of threads for CPU tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/system.h"
#include "cpu/threads/team.h"
#include "cpu/work/kernel.h"
#include "variables.h"

namespace vkrnn::cpu {

// Lets calls use this many threads during its lifetime.
class Threads {
public:
    explicit Threads(unsigned count) {
        system::pretended_processors = count;
        test::set_variable("VKRNN_NUM_THREADS", std::to_string(count));
    }
    ~Threads() {
        system::pretended_processors = 0;
        test::set_variable("VKRNN_NUM_THREADS", std::nullopt);
    }
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;
};

// Returns how many members a team gets.
inline unsigned members_of(unsigned wanted) {
    unsigned size = 0;
    run_on_team(wanted, {}, [&](Member& member) {
        if (member.rank() == 0) size = member.size();
    });
    return size;
}

// Aligned memory as in plans, whose end AddressSanitizer checks.
template <class T>
struct AlignedAllocator {
    using value_type = T;
    AlignedAllocator() = default;
    template <class U>
    explicit AlignedAllocator(const AlignedAllocator<U>& /*other*/) {}
    T* allocate(std::size_t count) { return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64})); }
    void deallocate(T* p, std::size_t /*count*/) { ::operator delete (p, std::align_val_t{64}); }
    bool operator==(const AlignedAllocator&) const = default;
};
template <class T>
using Aligned = std::vector<T, AlignedAllocator<T>>;

inline std::uint64_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

// Returns the number of elements of type T in a vector of this instruction set.
template <class T>
std::int64_t lanes_of(const Target& target) {
    return std::max<std::int64_t>(1, target.lanes * sizeof(float) / sizeof(T));
}

inline std::string kernel_for(const std::string& name, std::size_t element_bytes) {
    return element_bytes == sizeof(double) ? name + "_f64" : name;
}

// Runs one kernel on a team. It has the requested number of threads unless the machine has a quota.
template <class Work>
void run_kernel(const Target& target, const std::string& name, const Work& work, unsigned threads = 1) {
    const NamedKernel& kernel = find_kernel(target, name);
    const Threads allowed(threads);
    run_on_team(threads, {},
                [&](Member& member) { kernel.run(reinterpret_cast<const std::byte*>(&work), nullptr, member); });
}

// Returns reproducible numbers from -1 to 1.
class Numbers {
public:
    explicit Numbers(std::uint32_t seed = 1) : state_(seed) {}
    double operator()() {
        state_ = state_ * 6364136223846793005U + 1442695040888963407U;
        return static_cast<double>(state_ >> 33) / static_cast<double>(1U << 30) - 1.0;
    }
    template <class T>
    Aligned<T> array(std::int64_t count, double scale = 1.0) {
        Aligned<T> made(static_cast<std::size_t>(count));
        for (T& value : made) value = static_cast<T>(scale * (*this)());
        return made;
    }

private:
    std::uint64_t state_;
};

}  // namespace vkrnn::cpu
