// The devices of calls in XLA's programs, and the memory of their operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "vkrnn/device.h"
#include "vkrnn/environment.h"

namespace vkrnn::python {

// What a call runs on. Its operands and results are in the host's memory, or in that of the CUDA device.
class XlaTarget {
public:
    XlaTarget(std::shared_ptr<Device> device, bool on_cuda) : device_(std::move(device)), on_cuda_(on_cuda) {}

    [[nodiscard]] Device& device() const { return *device_; }
    [[nodiscard]] bool on_cuda() const { return on_cuda_; }

    [[nodiscard]] InputLocation input(const void* data, std::size_t bytes) const;
    [[nodiscard]] ResultLocation result(void* data, std::size_t bytes) const;

    // Returns the contents of an operand. `copy` keeps those that are read from a CUDA device.
    [[nodiscard]] const void* read(const void* data, std::size_t bytes, std::vector<std::byte>& copy) const;

private:
    [[nodiscard]] std::shared_ptr<Storage> storage_at(const void* data, std::size_t bytes) const;

    std::shared_ptr<Device> device_;
    bool on_cuda_;
};

// Returns the number of a device in the programs of this process, and reads the environment. The caller has the GIL.
std::int64_t xla_number(const std::shared_ptr<Device>& device);

// Returns the target of a call by its device's number. 0 is a CPU device of the programs' own, and for a call on the
// CUDA device `ordinal` the device that Python shares between calls there. Throws DeviceError.
XlaTarget target_on_host(std::int64_t number);
XlaTarget target_on_cuda(std::int64_t number, int ordinal);

// Reads the environment variables of calls for xla_environment(), which programs ask without the GIL.
void read_xla_environment();
std::shared_ptr<const EnvironmentValues> xla_environment();

}  // namespace vkrnn::python
