#include "vk/device/vulkan_error.h"

#include <new>
#include <system_error>

#include "base/messages.h"
#include "vk/device/vulkan.h"

namespace vkrnn::vk {
namespace {

// `asked` is 0 if a driver ran out of memory internally, because it does not report how much it needed.
std::string memory_text(std::uint64_t asked, std::uint64_t free) {
    if (asked == 0) {
        return {};
    }
    return ": " + bytes_text(asked) + " asked, " + bytes_text(free) + " free";
}

}  // namespace

void rethrow_translated(const std::string& prefix, std::uint64_t asked, std::uint64_t free) {
    try {
        throw;
    } catch (const Error&) {
        throw;
    } catch (const ::vk::DeviceLostError& error) {
        throw DeviceError(prefix + "the device was lost: " + error.what() + "; open a new vkrnn.Device");
    } catch (const ::vk::OutOfDeviceMemoryError&) {
        throw MemoryError(prefix + "the device is out of memory" + memory_text(asked, free), asked, free);
    } catch (const ::vk::OutOfHostMemoryError&) {
        throw MemoryError(prefix + "the driver is out of host memory" + memory_text(asked, free), asked, free);
    } catch (const std::bad_alloc&) {
        throw MemoryError(prefix + "out of host memory" + memory_text(asked, free), asked, free);
    } catch (const ::vk::Error& error) {
        throw DeviceError(prefix + "the driver reported an error: " + error.what());
    } catch (const std::system_error& error) {
        throw DeviceError(prefix + "the operating system reported an error: " + error.what());
    } catch (const std::logic_error& error) {
        throw Error(prefix + "internal error: " + error.what());
    }
    // Other exceptions, such as one thrown by the caller's poll, pass through.
}

bool is_device_lost() {
    try {
        throw;
    } catch (const ::vk::DeviceLostError&) {
        return true;
    } catch (...) {
        return false;
    }
}

}  // namespace vkrnn::vk
