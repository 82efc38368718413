// Teams with any number of threads for CPU tests. Include it in one source of an executable.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "cpu/threads/team.h"
#include "cpu/work/kernel.h"

namespace vkrnn::cpu {

inline unsigned pretended_processors = 0;

// Seconds after which a forked child is taken to hang, on any machine. Pass it to alarm() in the child.
constexpr unsigned kHangs = 600;

}  // namespace vkrnn::cpu

// Replaces the C library's function.
extern "C" int sched_getaffinity(pid_t pid, std::size_t bytes, cpu_set_t* set) noexcept {
    CPU_ZERO_S(bytes, set);  // the system call fills only a part of the set
    if (vkrnn::cpu::pretended_processors == 0) return syscall(SYS_sched_getaffinity, pid, bytes, set) < 0 ? -1 : 0;
    for (unsigned i = 0; i < vkrnn::cpu::pretended_processors; ++i) CPU_SET_S(i, bytes, set);
    return 0;
}

namespace vkrnn::cpu {

// Lets calls use this many threads during its lifetime.
class Threads {
public:
    explicit Threads(unsigned count) {
        pretended_processors = count;
        setenv("VKRNN_NUM_THREADS", std::to_string(count).c_str(), 1);
    }
    ~Threads() {
        pretended_processors = 0;
        unsetenv("VKRNN_NUM_THREADS");
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
    void deallocate(T* p, std::size_t count) { ::operator delete (p, count * sizeof(T), std::align_val_t{64}); }
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
