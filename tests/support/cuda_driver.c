// A CUDA driver without a GPU, for tests of the device around the kernels: memory is the host's, a kernel does nothing,
// and new memory contains bytes of 0x3c.
// The environment variable FAKE_CUDA_FAIL=function:error:first:count lets `count` calls of a function fail, from the
// first, counted from 1. FAKE_CUDA_VERSION is the driver's version. CUDA_VISIBLE_DEVICES=-1 hides the devices, as it
// does with NVIDIA's driver.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;

static Result failure(const char* function, int* calls) {
    const char* wanted = getenv("FAKE_CUDA_FAIL");
    char name[64];
    int error, first, count;
    if (wanted == NULL || sscanf(wanted, "%63[^:]:%d:%d:%d", name, &error, &first, &count) != 4) return 0;
    if (strcmp(name, function) != 0) return 0;
    ++*calls;
    return *calls >= first && *calls < first + count ? error : 0;
}

#define FUNCTION(name, parameters, body)              \
    Result name parameters {                          \
        static int calls;                             \
        const Result failed = failure(#name, &calls); \
        if (failed) return failed;                    \
        body;                                         \
        return 0;                                     \
    }

static int allocations, launches, contexts, streams, lane_launches;
static size_t held;
static int host_allocations;
static uint32_t* host_word;  // in the host memory that was allocated last

static int is_hidden(void) {
    const char* visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible != NULL && strcmp(visible, "-1") == 0;
}

FUNCTION(cuInit, (unsigned flags), (void)flags; if (is_hidden()) return 100)
// NVRTC asks the driver for a table, and goes without it.
Result cuGetExportTable(const void** table, const void* id) {
    (void)id;
    *table = NULL;
    return 500;
}
FUNCTION(cuDriverGetVersion, (int* version),
         *version = getenv("FAKE_CUDA_VERSION") ? atoi(getenv("FAKE_CUDA_VERSION")) : 13000)
FUNCTION(cuGetErrorName, (Result error, const char** name),
         *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR")
FUNCTION(cuGetErrorString, (Result error, const char** text), (void)error; *text = "a text")
FUNCTION(cuDeviceGetCount, (int* count), *count = 2)
FUNCTION(cuDeviceGet, (int* device, int ordinal), *device = ordinal)
FUNCTION(cuDeviceGetName, (char* name, int length, int device), (void)device; snprintf(name, length, "Fake GPU"))
FUNCTION(cuDeviceGetUuid, (unsigned char* uuid, int device), memset(uuid, device + 1, 16))
FUNCTION(cuDeviceTotalMem_v2, (size_t * bytes, int device), (void)device; *bytes = (size_t)8 << 30)
FUNCTION(
    cuDeviceGetAttribute, (int* value, int attribute, int device), (void)device; switch (attribute) {
        case 1:
        case 2: *value = 1024; break;
        case 8: *value = 49152; break;
        case 10: *value = 32; break;
        case 12: *value = 65536; break;
        case 16: *value = 132; break;
        case 75: *value = device == 0 ? 9 : 7; break;
        case 76: *value = 0; break;
        case 97: *value = 232448; break;
        default: *value = 1;
    })
FUNCTION(cuDevicePrimaryCtxRetain, (void** context, int device), (void)device; ++contexts; *context = &contexts)
FUNCTION(cuDevicePrimaryCtxRelease_v2, (int device), (void)device; --contexts)
FUNCTION(cuCtxPushCurrent_v2, (void* context), (void)context)
FUNCTION(cuCtxPopCurrent_v2, (void** context), *context = &contexts)
FUNCTION(cuCtxSynchronize, (void), )
FUNCTION(cuMemAlloc_v2, (uint64_t * address, size_t bytes), *address = (uint64_t)(uintptr_t)aligned_alloc(256, bytes))
FUNCTION(cuMemFree_v2, (uint64_t address), free((void*)(uintptr_t)address))
FUNCTION(cuMemHostAlloc, (void** memory, size_t bytes, unsigned flags), (void)flags; *memory = host_word = malloc(bytes);
         ++host_allocations)
FUNCTION(cuMemFreeHost, (void* memory), free(memory); --host_allocations)
FUNCTION(cuMemGetInfo_v2, (size_t * free, size_t* total), *total = (size_t)8 << 30; *free = *total - held)
FUNCTION(cuMemPoolCreate, (void** pool, const void* properties), (void)properties; *pool = &held)
FUNCTION(cuMemPoolDestroy, (void* pool), (void)pool)
FUNCTION(cuMemPoolSetAttribute, (void* pool, int attribute, void* value), (void)pool; (void)attribute; (void)value)
FUNCTION(cuMemPoolGetAttribute, (void* pool, int attribute, void* value), (void)pool; (void)attribute;
         *(uint64_t*)value = held)
FUNCTION(cuMemPoolTrimTo, (void* pool, size_t kept), (void)pool; (void)kept)
FUNCTION(cuMemAllocFromPoolAsync, (uint64_t * address, size_t bytes, void* pool, void* stream), (void)pool;
         (void)stream; size_t* piece = aligned_alloc(256, 256 + (bytes + 255) / 256 * 256); if (!piece) return 2;
         *piece = bytes; *address = (uint64_t)(uintptr_t)piece + 256; memset(piece + 32, 0x3c, bytes); ++allocations;
         held += bytes)
FUNCTION(cuPointerGetAttribute, (void* value, int attribute, uint64_t address), (void)attribute; (void)address;
         *(int*)value = 0)
FUNCTION(cuMemFreeAsync, (uint64_t address, void* stream), (void)stream;
         size_t* piece = (size_t*)(uintptr_t)(address - 256); held -= *piece; --allocations; free(piece))
FUNCTION(cuMemcpyHtoDAsync_v2, (uint64_t to, const void* from, size_t bytes, void* stream), (void)stream;
         memcpy((void*)(uintptr_t)to, from, bytes))
FUNCTION(cuMemcpyDtoHAsync_v2, (void* to, uint64_t from, size_t bytes, void* stream), (void)stream;
         memcpy(to, (void*)(uintptr_t)from, bytes))
FUNCTION(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void* stream), (void)stream;
         memcpy((void*)(uintptr_t)to, (void*)(uintptr_t)from, bytes))
FUNCTION(cuMemsetD8Async, (uint64_t at, unsigned char value, size_t bytes, void* stream), (void)stream;
         memset((void*)(uintptr_t)at, value, bytes))
FUNCTION(cuEventCreate, (void** event, unsigned flags), (void)flags; *event = malloc(1))
FUNCTION(cuEventDestroy_v2, (void* event), free(event))
FUNCTION(cuEventRecord, (void* event, void* stream), (void)event; (void)stream)
// With FAKE_CUDA_BUSY=n, work is done when an event has been asked for the n-th time.
static int is_busy(void) {
    static int asked;
    const char* wanted = getenv("FAKE_CUDA_BUSY");
    return wanted != NULL && ++asked < atoi(wanted);
}
FUNCTION(cuEventQuery, (void* event), (void)event; if (is_busy()) return 600)
FUNCTION(cuEventElapsedTime, (float* milliseconds, void* from, void* to), (void)from; (void)to; *milliseconds = 1)
FUNCTION(cuStreamWaitEvent, (void* stream, void* event, unsigned flags), (void)stream; (void)event; (void)flags)
FUNCTION(cuStreamIsCapturing, (void* stream, int* status), (void)stream; *status = 0)
FUNCTION(cuStreamGetCaptureInfo_v2,
         (void* stream, int* status, unsigned long long* id, void** graph, const void** dependencies, size_t* count),
         (void)stream;
         (void)id; (void)graph; (void)dependencies; (void)count; *status = 0)
FUNCTION(cuStreamCreate, (void** stream, unsigned flags), (void)flags; *stream = malloc(1); ++streams)
FUNCTION(cuStreamDestroy_v2, (void* stream), free(stream); --streams)
FUNCTION(cuModuleLoadData, (void** module, const void* image), (void)image; *module = malloc(1))
FUNCTION(cuModuleUnload, (void* module), free(module))
FUNCTION(cuModuleGetFunction, (void** function, void* module, const char* name), (void)module; (void)name;
         *function = &launches)
FUNCTION(cuFuncGetAttribute, (int* value, int attribute, void* function), (void)attribute; (void)function; *value = 64)
FUNCTION(cuFuncSetAttribute, (void* function, int attribute, int value), (void)attribute; (void)function; (void)value)
FUNCTION(cuLaunchKernel,
         (void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned b, unsigned c, unsigned shared,
          void* stream, void** parameters, void** extra),
         (void)function;
         (void)x; (void)y; (void)z; (void)threads; (void)b; (void)c; (void)shared; (void)parameters; (void)extra;
         ++launches; if ((uintptr_t)stream > 2) ++lane_launches)

// For tests: what is still allocated, how many kernels were launched, and the streams that exist.
int fake_cuda_allocations(void) { return allocations; }
int fake_cuda_launches(void) { return launches; }
int fake_cuda_host_allocations(void) { return host_allocations; }
void fake_cuda_fail_a_wait(void) { *host_word = 1; }  // as kernels do
int fake_cuda_streams(void) { return streams; }
int fake_cuda_lane_launches(void) { return lane_launches; }  // on streams that were created
