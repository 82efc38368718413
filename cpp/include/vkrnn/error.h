// The exceptions of the C++ core. The bindings translate each to the Python exception of the same name.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace vkrnn {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The user's mistakes, all raised before a device is touched.
struct TypeError : Error {
    using Error::Error;
};
struct ValueError : Error {
    using Error::Error;
};
struct NotImplementedError : Error {
    using Error::Error;
};

// Sizes that do not fit the device. The next call works.
struct MemoryError : Error {
    MemoryError(const std::string& message, std::uint64_t asked_bytes, std::uint64_t free_bytes)
        : Error(message), asked(asked_bytes), free(free_bytes) {}
    std::uint64_t asked;
    std::uint64_t free;
};

// No driver, no device, or a device that was lost. A lost device stays unusable; a new Device works.
struct DeviceError : Error {
    using Error::Error;
};

// The caller's poll asked to stop: what had been submitted is done, the rest was not submitted.
struct Interrupted : Error {
    Interrupted() : Error("interrupted") {}
};

}  // namespace vkrnn
