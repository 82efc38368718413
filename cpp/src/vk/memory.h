// Where the buffers of a plan are during a call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arena.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

// One buffer of a plan. `host` is where the host writes it before or reads it after the device works: the memory itself
// where that is unified, else a piece of the staging memory; null where the host has no business with the buffer.
struct Placement {
    Slice device;
    Slice staging;  // without a buffer where the memory is unified
    std::byte* host = nullptr;
};

class Memory {
public:
    // `unified` false uses staging memory even where the host could map the device's.
    Memory(const LogicalDevice& device, bool unified);

    // Places every buffer of the plan; what was placed before is void, and the device must be done with it.
    // Throws MemoryError where it does not fit, before anything is allocated if that can be told, holding nothing
    // more than it held before; the message begins with `prefix`.
    std::span<const Placement> place(const Plan& plan, const std::string& prefix);

    // Gives all memory back to the driver.
    void release();

    [[nodiscard]] std::uint64_t held() const;

private:
    void check_device(const Plan& plan, const std::string& prefix) const;
    void check_staging(const std::string& prefix) const;
    void allocate(const std::string& prefix);

    const LogicalDevice& device_;
    bool unified_;
    Arena device_arena_, upload_arena_, download_arena_;
    // Reused from call to call.
    std::vector<std::uint64_t> sizes_, upload_sizes_, download_sizes_;
    std::vector<Slice> slices_, uploads_, downloads_;
    std::vector<Placement> placements_;
};

}  // namespace vkrnn::vk
