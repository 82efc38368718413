// CUDA's driver API, opened at run time. The types and numbers are those of cuda.h, which the build does not need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vkrnn::cuda {

// Types of cuda.h, with their names there but without the CU. Handles are opaque pointers there.
using Result = int;
using DeviceNumber = int;
using Address = std::uint64_t;
enum class Context : std::uintptr_t {};
enum class Module : std::uintptr_t {};
enum class Function : std::uintptr_t {};
enum class Event : std::uintptr_t {};
enum class MemoryPool : std::uintptr_t {};
enum class Stream : std::uintptr_t {
    // Synchronizes with all other streams of its context, except non-blocking ones.
    legacy = 1,
};

inline constexpr Result kSuccess = 0, kOutOfMemory = 2, kNotReady = 600, kContextIsDestroyed = 709;

enum class DeviceAttribute : int {
    max_threads_per_block = 1,
    max_block_x = 2,
    max_shared_memory = 8,
    warp_size = 10,
    registers = 12,
    multiprocessors = 16,
    major = 75,
    minor = 76,
    max_launch_shared_memory = 97,
    memory_pools = 115,
};
enum class PointerAttribute : int { device_ordinal = 9 };
enum class FunctionAttribute : int { max_threads_per_block = 0, shared_memory = 1, max_launch_shared_memory = 8 };
enum class PoolAttribute : int { release_threshold = 4, reserved_now = 5, used_now = 7 };
enum class EventFlags : unsigned { timed = 0, untimed = 2 };
enum class StreamFlags : unsigned { non_blocking = 1 };  // does not wait for the legacy stream

struct Uuid {
    unsigned char bytes[16];
};

// The properties of a pool of memory on one device that only this process uses.
struct PoolProperties {
    int allocation_type = 1;  // pinned, the only one
    int handle_types = 0;     // not exported
    struct {
        int type = 1;  // a device
        int id = 0;
    } location;
    void* windows_attributes = nullptr;
    std::size_t max_size = 0;
    unsigned short usage = 0;
    unsigned char reserved[54] = {};
};

// The driver's functions that vkrnn uses. driver.cpp has their full names, with the prefix cu and a version.
struct Functions {
    Result (*Init)(unsigned flags);
    Result (*DriverGetVersion)(int* version);
    Result (*GetErrorName)(Result error, const char** name);
    Result (*GetErrorString)(Result error, const char** text);
    Result (*DeviceGetCount)(int* count);
    Result (*DeviceGet)(DeviceNumber* device, int ordinal);
    Result (*DeviceGetName)(char* name, int length, DeviceNumber device);
    Result (*DeviceGetUuid)(Uuid* uuid, DeviceNumber device);
    Result (*DeviceTotalMem)(std::size_t* bytes, DeviceNumber device);
    Result (*DeviceGetAttribute)(int* value, DeviceAttribute attribute, DeviceNumber device);
    Result (*DevicePrimaryCtxRetain)(Context* context, DeviceNumber device);
    Result (*DevicePrimaryCtxRelease)(DeviceNumber device);
    Result (*CtxPushCurrent)(Context context);
    Result (*CtxPopCurrent)(Context* context);
    Result (*CtxSynchronize)();
    Result (*MemAlloc)(Address* address, std::size_t bytes);
    Result (*MemFree)(Address address);
    Result (*MemHostAlloc)(void** memory, std::size_t bytes, unsigned flags);
    Result (*MemFreeHost)(void* memory);
    Result (*MemGetInfo)(std::size_t* free, std::size_t* total);
    Result (*MemPoolCreate)(MemoryPool* pool, const PoolProperties* properties);
    Result (*MemPoolDestroy)(MemoryPool pool);
    Result (*MemPoolSetAttribute)(MemoryPool pool, PoolAttribute attribute, void* value);
    Result (*MemPoolGetAttribute)(MemoryPool pool, PoolAttribute attribute, void* value);
    Result (*MemPoolTrimTo)(MemoryPool pool, std::size_t kept);
    Result (*MemAllocFromPoolAsync)(Address* address, std::size_t bytes, MemoryPool pool, Stream stream);
    Result (*PointerGetAttribute)(void* value, PointerAttribute attribute, Address address);
    Result (*MemFreeAsync)(Address address, Stream stream);
    Result (*MemcpyHtoDAsync)(Address to, const void* from, std::size_t bytes, Stream stream);
    Result (*MemcpyDtoHAsync)(void* to, Address from, std::size_t bytes, Stream stream);
    Result (*MemcpyDtoDAsync)(Address to, Address from, std::size_t bytes, Stream stream);
    Result (*MemsetD8Async)(Address at, unsigned char value, std::size_t bytes, Stream stream);
    Result (*EventCreate)(Event* event, EventFlags flags);
    Result (*EventDestroy)(Event event);
    Result (*EventRecord)(Event event, Stream stream);
    Result (*EventQuery)(Event event);
    Result (*EventElapsedTime)(float* milliseconds, Event from, Event to);
    Result (*StreamWaitEvent)(Stream stream, Event event, unsigned flags);
    Result (*StreamIsCapturing)(Stream stream, int* status);
    Result (*StreamGetCaptureInfo)(Stream stream, int* status, unsigned long long* id, void** graph,
                                   const void** dependencies, std::size_t* count);
    Result (*StreamCreate)(Stream* stream, StreamFlags flags);
    Result (*StreamDestroy)(Stream stream);
    Result (*ModuleLoadData)(Module* module, const void* image);
    Result (*ModuleUnload)(Module module);
    Result (*ModuleGetFunction)(Function* function, Module module, const char* name);
    Result (*FuncGetAttribute)(int* value, FunctionAttribute attribute, Function function);
    Result (*FuncSetAttribute)(Function function, FunctionAttribute attribute, int value);
    Result (*LaunchKernel)(Function function, unsigned groups_x, unsigned groups_y, unsigned groups_z,
                           unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared, Stream stream,
                           void** parameters, void** extra);
};

// Returns the functions of the driver, which is opened and initialized once per process. Throws DeviceError if there is
// no driver or no device, or if the driver lacks a function.
const Functions& driver();

// Returns the functions for destructors; null if driver() would throw.
const Functions* driver_to_clean_up() noexcept;

// Thrown by check() below.
struct DriverError {
    Result code;
    std::string text;  // "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"

    [[nodiscard]] bool loses_device() const;
};

// Thrown if a library of NVIDIA's reports an error.
struct LibraryError {
    std::string text;  // "cuBLASLt reported CUBLAS_STATUS_INTERNAL_ERROR: an internal operation failed"
};

// Throws a DriverError if a function did not succeed.
void check(Result result);

// Rethrows the current exception as one of the project's errors. The message begins with `prefix`.
[[noreturn]] void rethrow_translated(const std::string& prefix);

// Returns an attribute of a device. Throws DriverError.
int attribute_of(DeviceNumber device, DeviceAttribute attribute);

// Returns the version of CUDA that the driver supports: 13000 for 13.0.
int driver_version();
std::string version_text(int version);

}  // namespace vkrnn::cuda
