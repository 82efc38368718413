// Devices that run plans, as the rest of the project sees them. No Vulkan types here, so that only the files under
// src/vk/ are compiled against the Vulkan headers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vkrnn/plan.h"
#include "vkrnn/profile.h"
#include "vkrnn/spec.h"

namespace vkrnn {

// Asked now and then while a call waits; true means stop (the caller saw an interrupt).
using Poll = std::function<bool()>;

// Counters since the device was opened.
struct Statistics {
    std::uint64_t calls = 0;
    std::uint64_t submissions = 0;
    std::uint64_t dispatches = 0;
    std::uint64_t repeated = 0;          // calls whose commands were there from an earlier one
    std::uint64_t bytes_uploaded = 0;    // copied from host memory
    std::uint64_t bytes_downloaded = 0;  // copied to host memory
    std::uint64_t bytes_imported = 0;    // of host memory that the device read where it was
    std::uint64_t bytes_allocated = 0;   // device memory held now
    std::uint64_t pipelines = 0;         // compiled pipelines held now
    std::uint64_t plans = 0;             // plans held now
    double last_device_seconds = 0.0;    // of the last call that is done, by device timestamps, without copies
    double last_host_seconds = 0.0;      // of the last call, from entry to return
};

// Memory of a device, for one array. It may be let go while work that uses it is under way, and stays readable by the
// host, where it is at all, when its device is closed.
class Storage {
public:
    virtual ~Storage() = default;
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    // Where the host sees the memory; null where it does not. To be used after Device::wait.
    [[nodiscard]] std::byte* host() const { return host_; }

    // A number that every change of the contents raises; none while the host may change them when it likes.
    [[nodiscard]] std::optional<std::uint64_t> version() const {
        return views_ == 0 ? std::optional(version_.load()) : std::nullopt;
    }
    // To be called when something has been written, or submitted that writes.
    void changed() { ++version_; }

protected:
    Storage(std::uint64_t bytes, std::byte* host) : bytes_(bytes), host_(host) {}

private:
    friend class HostView;

    std::uint64_t bytes_;
    std::byte* host_;
    std::atomic<std::uint64_t> version_ = 0, views_ = 0;
};

// For as long as somebody may write a storage's memory on the host.
class HostView {
public:
    explicit HostView(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) { ++storage_->views_; }
    ~HostView() {
        storage_->changed();
        --storage_->views_;
    }
    HostView(const HostView&) = delete;
    HostView& operator=(const HostView&) = delete;

private:
    std::shared_ptr<Storage> storage_;
};

// Where a tensor of a call is, C-contiguous: in host memory, or `offset` bytes into a device's.
template <class Byte>
struct Operand {
    Byte* host = nullptr;
    std::shared_ptr<Storage> storage{};
    std::uint64_t offset = 0;
};
using InputOperand = Operand<const void>;
using ResultOperand = Operand<void>;

// The devices, best first: discrete, integrated and virtual GPUs, the CPU itself, then Vulkan on the CPU. Unless the
// list is to be complete it may end with the CPU, and is made without asking Vulkan's drivers where there is no GPU.
std::vector<Profile> list_devices(bool complete = true);

// Why no Vulkan device can be listed, with what to install; empty where some can.
std::string vulkan_problem();

class Device {
public:
    // Opens the device at `index` of list_devices(), to run calls with the strategies that are fixed. Throws
    // DeviceError.
    static std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed = {});
    virtual ~Device() = default;

    [[nodiscard]] virtual const Profile& profile() const = 0;

    // The plan for a spec on this device; cached. Thread-safe.
    virtual std::shared_ptr<const Plan> plan(const Spec& spec) = 0;

    // Throws MemoryError where the plan's buffers are too large for the device or where it has not `bytes` free. Asks
    // the driver only where that is many; a call may still find too little.
    virtual void require_room(const Plan& plan, std::uint64_t bytes, std::string_view label) = 0;

    // Memory for an array, contents undefined. `host_writes`: that the host is going to fill, so that it need not wait
    // for what was there before. Throws MemoryError, DeviceError.
    virtual std::shared_ptr<Storage> allocate(std::uint64_t bytes, bool host_writes) = 0;

    // The same for something that the host is to read: the storage has host(). Null where such memory is scarce, and
    // copying to other memory of the host is better.
    virtual std::shared_ptr<Storage> allocate_for_host(std::uint64_t bytes) = 0;

    // What follows is carried out in the order of the calls, without waiting for one another. It throws MemoryError,
    // DeviceError, and Interrupted where it had to wait; storage must be of this device, and operands must not overlap
    // with results.

    // Runs a plan. `inputs` go with plan.inputs and `results` with plan.results, by the buffers' sizes. `wait`: returns
    // when the results are in place; until then the host memory of inputs may be read in place. Without it there must
    // be no results in host memory, and it returns when everything is submitted. `label` goes into error messages and
    // debug labels. Interrupted leaves the results undefined.
    virtual void run(const std::shared_ptr<const Plan>& plan, std::span<const InputOperand> inputs,
                     std::span<const ResultOperand> results, bool wait, std::string_view label, const Poll& poll) = 0;

    // From host memory, which may change on return; to host memory, which is written on return; between storages.
    virtual void upload(const ResultOperand& to, const void* from, std::uint64_t bytes, const Poll& poll) = 0;
    virtual void download(void* to, const InputOperand& from, std::uint64_t bytes, const Poll& poll) = 0;
    virtual void copy(const ResultOperand& to, const InputOperand& from, std::uint64_t bytes, const Poll& poll) = 0;
    virtual void clear(const std::shared_ptr<Storage>& storage, const Poll& poll) = 0;

    // Waits until everything that writes the storage is done; or for all there is. A failure of the device is reported
    // here, under the label of the first call that was not done.
    virtual void wait(const Storage& storage, const Poll& poll) = 0;
    virtual void synchronize(const Poll& poll) = 0;

    [[nodiscard]] virtual Statistics statistics() const = 0;

    // Gives everything back to the driver, after writing the pipeline cache. Later calls raise DeviceError. Idempotent.
    virtual void close() = 0;
    [[nodiscard]] virtual bool closed() const = 0;
    // True once the driver reported the device lost. Calls on a lost device raise DeviceError.
    [[nodiscard]] virtual bool lost() const = 0;

    // Makes the device behave as if the driver had lost it during the next run. For tests.
    virtual void lose_for_test() = 0;
};

// Messages of the Vulkan validation layers so far, newest last. They are collected where the environment variable
// VKRNN_VALIDATION is 1 (which loads the layers, synchronization validation included); DeviceError where it is 1
// and the layers are not installed.
std::vector<std::string> validation_messages();

// The folder of the pipeline caches: $VKRNN_CACHE_DIR, else $XDG_CACHE_HOME/vkrnn, else ~/.cache/vkrnn.
std::string cache_directory();

// SPIR-V of a kernel of this package, by name; empty if there is none. Generated at build time.
std::span<const std::uint32_t> shader_code(std::string_view name);

}  // namespace vkrnn
