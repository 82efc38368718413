#include "cuda/libraries/driver.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/system.h"
#include "cuda/libraries/library.h"
#include "vkrnn/error.h"

namespace vkrnn::cuda {
namespace {

constexpr const char* kLibrary = system::kIsWindows ? "nvcuda.dll" : "libcuda.so.1";

constexpr Result kNoDevice = 100;
// Errors after which a context runs nothing any more: illegal addresses and instructions, failed launches and others.
constexpr Result kSticky[] = {46, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};

struct Opened {
    Functions functions{};
    long process = system::process_id();
    std::string problem;  // why there are no functions

    Opened() {
        void* const library = system::open_library(kLibrary);
        if (library == nullptr) {
            problem = std::string("no CUDA driver (") + kLibrary + ") was found";
            return;
        }
        const auto find = [&](auto& function, const char* name) {
            function =
                reinterpret_cast<std::remove_reference_t<decltype(function)>>(system::find_function(library, name));
            if (function == nullptr && problem.empty())
                problem = std::string("the CUDA driver is too old, it has no ") + name;
        };
        Functions& all = functions;
        find(all.Init, "cuInit");
        find(all.DriverGetVersion, "cuDriverGetVersion");
        find(all.GetErrorName, "cuGetErrorName");
        find(all.GetErrorString, "cuGetErrorString");
        find(all.DeviceGetCount, "cuDeviceGetCount");
        find(all.DeviceGet, "cuDeviceGet");
        find(all.DeviceGetName, "cuDeviceGetName");
        find(all.DeviceGetUuid, "cuDeviceGetUuid");
        find(all.DeviceTotalMem, "cuDeviceTotalMem_v2");
        find(all.DeviceGetAttribute, "cuDeviceGetAttribute");
        find(all.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
        find(all.DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
        find(all.CtxPushCurrent, "cuCtxPushCurrent_v2");
        find(all.CtxPopCurrent, "cuCtxPopCurrent_v2");
        find(all.CtxSynchronize, "cuCtxSynchronize");
        find(all.MemAlloc, "cuMemAlloc_v2");
        find(all.MemFree, "cuMemFree_v2");
        find(all.MemHostAlloc, "cuMemHostAlloc");
        find(all.MemFreeHost, "cuMemFreeHost");
        find(all.MemGetInfo, "cuMemGetInfo_v2");
        find(all.MemPoolCreate, "cuMemPoolCreate");
        find(all.MemPoolDestroy, "cuMemPoolDestroy");
        find(all.MemPoolSetAttribute, "cuMemPoolSetAttribute");
        find(all.MemPoolGetAttribute, "cuMemPoolGetAttribute");
        find(all.MemPoolTrimTo, "cuMemPoolTrimTo");
        find(all.MemAllocFromPoolAsync, "cuMemAllocFromPoolAsync");
        find(all.PointerGetAttribute, "cuPointerGetAttribute");
        find(all.MemFreeAsync, "cuMemFreeAsync");
        find(all.MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
        find(all.MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
        find(all.MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
        find(all.MemsetD8Async, "cuMemsetD8Async");
        find(all.EventCreate, "cuEventCreate");
        find(all.EventDestroy, "cuEventDestroy_v2");
        find(all.EventRecord, "cuEventRecord");
        find(all.EventQuery, "cuEventQuery");
        find(all.EventElapsedTime, "cuEventElapsedTime");
        find(all.StreamWaitEvent, "cuStreamWaitEvent");
        find(all.StreamIsCapturing, "cuStreamIsCapturing");
        find(all.StreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2");
        find(all.StreamCreate, "cuStreamCreate");
        find(all.StreamDestroy, "cuStreamDestroy_v2");
        find(all.ModuleLoadData, "cuModuleLoadData");
        find(all.ModuleUnload, "cuModuleUnload");
        find(all.ModuleGetFunction, "cuModuleGetFunction");
        find(all.FuncGetAttribute, "cuFuncGetAttribute");
        find(all.FuncSetAttribute, "cuFuncSetAttribute");
        find(all.LaunchKernel, "cuLaunchKernel");
        if (!problem.empty()) return;
        const Result result = functions.Init(0);
        if (result == kNoDevice)
            problem = "the CUDA driver has no device";
        else if (result != kSuccess)
            problem = "the CUDA driver cannot be used: " + text_of(result);
    }

    [[nodiscard]] std::string text_of(Result result) const {
        const char *name = nullptr, *text = nullptr;
        functions.GetErrorName(result, &name);
        functions.GetErrorString(result, &text);
        return std::string(name != nullptr ? name : std::to_string(result).c_str()) + ": " +
               (text != nullptr ? text : "unknown error");
    }
};

// Never destroyed, because threads may use the driver while the process ends.
const Opened& opened() {
    static const Opened& instance = *new Opened;  // NOLINT(cppcoreguidelines-owning-memory)
    return instance;
}

}  // namespace

const Functions& driver() {
    const Opened& found = opened();
    if (!found.problem.empty()) throw DeviceError(found.problem);
    if (found.process != system::process_id())
        throw DeviceError("the CUDA driver was started before a fork, and cannot be used in the child");
    return found.functions;
}

const Functions* driver_to_clean_up() noexcept {
    const Opened& found = opened();
    return found.problem.empty() && found.process == system::process_id() ? &found.functions : nullptr;
}

bool DriverError::loses_device() const { return std::ranges::find(kSticky, code) != std::end(kSticky); }

void check(Result result) {
    if (result != kSuccess) throw DriverError{result, opened().text_of(result)};
}

void rethrow_translated(const std::string& prefix) {
    try {
        throw;
    } catch (const Error&) {
        throw;
    } catch (const DriverError& error) {
        if (error.code == kOutOfMemory) throw MemoryError(prefix + "the device is out of memory", 0, 0);
        if (error.loses_device())
            throw DeviceError(prefix + "the device was lost: " + error.text + "; CUDA works again in a new process");
        throw DeviceError(prefix + "the driver reported an error: " + error.text);
    } catch (const LibraryError& error) {
        throw DeviceError(prefix + error.text);
    } catch (const std::bad_alloc&) {
        throw MemoryError(prefix + "out of host memory", 0, 0);
    } catch (const std::system_error& error) {
        throw DeviceError(prefix + "the operating system reported an error: " + error.what());
    } catch (const std::logic_error& error) {
        throw Error(prefix + "internal error: " + error.what());
    }
    // Other exceptions, such as one thrown by the caller's poll, pass through.
}

int attribute_of(DeviceNumber device, DeviceAttribute attribute) {
    int value = 0;
    check(driver().DeviceGetAttribute(&value, attribute, device));
    return value;
}

int driver_version() {
    int version = 0;
    check(driver().DriverGetVersion(&version));
    return version;
}

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace vkrnn::cuda
