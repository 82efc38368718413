#include "xla_target.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "bindings.h"
#include "vkrnn/cuda.h"
#include "vkrnn/error.h"

namespace vkrnn::python {
namespace {

constexpr std::array<const char*, 3> kVariables{"VKRNN_CPU_TARGET", kCallVariables[0], kCallVariables[1]};
const std::string kWhere = "[vkrnn.jax]";

// What Python's side gives the handlers.
struct Given {
    std::mutex mutex;
    std::vector<std::weak_ptr<Device>> devices;            // number 1 is the first
    std::map<int, std::weak_ptr<Device>> cuda;             // by the driver's numbers; Python keeps them
    std::shared_ptr<const EnvironmentValues> environment;  // read while Python held the GIL, never null for a handler
};

Given& given() {
    static auto& all = *new Given;  // never destroyed, because XLA's threads may still run while the process ends
    return all;
}

std::shared_ptr<Device> device_numbered(std::int64_t number) {
    const std::lock_guard lock(given().mutex);
    const auto& all = given().devices;
    const bool known = number > 0 && number <= static_cast<std::int64_t>(all.size());
    auto device = known ? all[static_cast<std::size_t>(number - 1)].lock() : nullptr;
    if (device == nullptr) throw DeviceError(kWhere + " the program's device is not one of this process");
    return device;
}

// Python opens the device, with the table that `python -m vkrnn tune` has made for it, and replaces one that was closed
// or lost.
std::shared_ptr<Device> shared_cuda(int ordinal) {
    {
        const std::lock_guard lock(given().mutex);
        auto known = given().cuda[ordinal].lock();
        if (known != nullptr && is_usable_cuda_device(*known)) return known;
    }
    std::shared_ptr<Device> opened;
    {
        const py::gil_scoped_acquire gil;
        try {
            opened = provided("opened_cuda")(ordinal, kWhere).cast<std::shared_ptr<Device>>();
        } catch (const py::error_already_set& error) {
            throw DeviceError(py::str(error.value()).cast<std::string>());
        }
    }
    const std::lock_guard lock(given().mutex);
    given().cuda[ordinal] = opened;
    return opened;
}

}  // namespace

InputLocation XlaTarget::input(const void* data, std::size_t bytes) const {
    return on_cuda_ ? InputLocation{nullptr, storage_at(data, bytes), 0} : InputLocation{data};
}

ResultLocation XlaTarget::result(void* data, std::size_t bytes) const {
    return on_cuda_ ? ResultLocation{nullptr, storage_at(data, bytes), 0} : ResultLocation{data};
}

const void* XlaTarget::read(const void* data, std::size_t bytes, std::vector<std::byte>& copy) const {
    if (!on_cuda_) return data;
    copy.resize(bytes);
    device_->download(copy.data(), input(data, bytes), bytes, &ending_without_gil);
    return copy.data();
}

std::shared_ptr<Storage> XlaTarget::storage_at(const void* data, std::size_t bytes) const {
    return borrow_cuda_memory(*device_, reinterpret_cast<std::uintptr_t>(data), bytes, {});
}

std::int64_t xla_number(const std::shared_ptr<Device>& device) {
    read_xla_environment();
    const std::lock_guard lock(given().mutex);
    auto& all = given().devices;
    auto found = std::ranges::find_if(all, [&](const auto& each) { return each.lock() == device; });
    if (found == all.end()) found = all.insert(all.end(), device);
    return found - all.begin() + 1;
}

XlaTarget target_on_host(std::int64_t number) {
    static const auto& own = *new std::shared_ptr<Device>(Device::open_cpu());
    return {number == 0 ? own : device_numbered(number), false};
}

XlaTarget target_on_cuda(std::int64_t number, int ordinal) {
    if (number == 0) return {shared_cuda(ordinal), true};
    auto device = device_numbered(number);
    if (cuda_ordinal(*device) != ordinal)
        throw DeviceError(kWhere + " expected arrays on " + device->profile().name +
                          ", the device of the call, got some on cuda:" + std::to_string(ordinal));
    return {std::move(device), true};
}

void read_xla_environment() {
    auto values = std::make_shared<const EnvironmentValues>(kVariables);
    const std::lock_guard lock(given().mutex);
    given().environment = std::move(values);
}

std::shared_ptr<const EnvironmentValues> xla_environment() {
    const std::lock_guard lock(given().mutex);
    return given().environment;
}

}  // namespace vkrnn::python
