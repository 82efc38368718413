// The structs of DLPack's C interface, through which libraries share arrays.
#pragma once

#include <cstdint>

namespace vkrnn::python {

struct DlTensor {
    std::uintptr_t data;  // a pointer on the device
    std::int32_t device_type, device_id;
    std::int32_t axes;
    std::uint8_t type_code, type_bits;
    std::uint16_t type_lanes;
    std::int64_t* shape;
    std::int64_t* strides;  // null: C-contiguous
    std::uint64_t byte_offset;
};

// Before version 1, which all libraries read.
struct DlManagedTensor {
    DlTensor tensor;
    void* context;
    void (*deleter)(DlManagedTensor*);
};

// From version 1 on.
struct DlVersion {
    std::uint32_t major, minor;
};
struct DlVersionedTensor {
    DlVersion version;
    void* context;
    void (*deleter)(DlVersionedTensor*);
    std::uint64_t flags;
    DlTensor tensor;
};

// The functions that a library offers for its arrays, which are Python objects: those that return something other than
// 0 have set a Python error.
struct DlInterface {
    DlVersion version;
    const DlInterface* before;
    void* allocate;
    void* export_tensor;
    int (*import_tensor)(DlVersionedTensor*, void** object);
    int (*view)(void* object, DlTensor* tensor);
    void* current_stream;
};

constexpr std::int32_t kDlCpu = 1, kDlCuda = 2;
constexpr std::uint8_t kDlFloat = 2, kDlBfloat = 4;

}  // namespace vkrnn::python
