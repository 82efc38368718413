// The exceptions of the C++ core. The bindings translate each to the Python exception of the same name.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace vkrnn {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Mistakes of the user. They are thrown before a device is used.
struct TypeError : Error {
    using Error::Error;
};
struct ValueError : Error {
    using Error::Error;
};
struct NotImplementedError : Error {
    using Error::Error;
};

// A call needs more memory than the device has. Later calls still work.
struct MemoryError : Error {
    MemoryError(const std::string& message, std::uint64_t asked_bytes, std::uint64_t free_bytes)
        : Error(message), asked(asked_bytes), free(free_bytes) {}
    std::uint64_t asked;
    std::uint64_t free;
};

// There is no driver or no device, or the device was lost. A lost device stays unusable, but a new Device works.
struct DeviceError : Error {
    using Error::Error;
};

// The caller's `poll` interrupted the call. Submitted work was completed; the rest was not submitted.
struct Interrupted : Error {
    Interrupted() : Error("interrupted") {}
};

}  // namespace vkrnn
