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

// Called every now and then while a call waits; returns true to stop it, because the caller saw an interrupt.
using Poll = std::function<bool()>;

// Counters since the device was opened.
struct Statistics {
    std::uint64_t calls = 0;
    std::uint64_t submissions = 0;
    std::uint64_t dispatches = 0;
    std::uint64_t repeated = 0;          // calls that replayed the commands of an earlier one
    std::uint64_t bytes_uploaded = 0;    // copied from host memory
    std::uint64_t bytes_downloaded = 0;  // copied to host memory
    std::uint64_t bytes_imported = 0;    // host memory that the device read in place
    std::uint64_t bytes_allocated = 0;   // device memory held now
    std::uint64_t pipelines = 0;         // compiled pipelines held now
    std::uint64_t plans = 0;             // plans held now
    double last_device_seconds = 0.0;    // the last finished call by device timestamps, without copies
    double last_host_seconds = 0.0;      // the last call from entry to return
};

// Memory of a device for one array. It may be released while commands that use it are running. Where the host can read
// it, it still can after the device has been closed.
class Storage {
public:
    virtual ~Storage() = default;
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    // Returns where the host sees the memory; null if it does not. Call Device::wait before using it.
    [[nodiscard]] std::byte* host() const { return host_; }

    // Returns a number that grows with every change of the contents; nothing while a HostView exists, through which the
    // contents may change unnoticed.
    [[nodiscard]] std::optional<std::uint64_t> version() const {
        return views_ == 0 ? std::optional(version_.load()) : std::nullopt;
    }
    // Called by whoever has written the contents, or submitted commands that will.
    void changed() { ++version_; }

protected:
    Storage(std::uint64_t bytes, std::byte* host) : bytes_(bytes), host_(host) {}

private:
    friend class HostView;

    std::uint64_t bytes_;
    std::byte* host_;
    std::atomic<std::uint64_t> version_ = 0, views_ = 0;
};

// Exists as long as somebody may write a storage's memory through its host address.
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

// Locates a C-contiguous tensor of a call: in host memory, or `offset` bytes into a storage.
template <class Byte>
struct TensorLocation {
    Byte* host = nullptr;
    std::shared_ptr<Storage> storage{};
    std::uint64_t offset = 0;
};
using InputLocation = TensorLocation<const void>;
using ResultLocation = TensorLocation<void>;

// Lists the devices, best first: discrete, integrated and virtual GPUs, the CPU itself, then Vulkan on the CPU. If the
// list need not be complete, it may end with the CPU: Vulkan's drivers are not asked on a machine without a GPU.
std::vector<Profile> list_devices(bool complete = true);

// Returns why no Vulkan device can be listed and what to install; empty if one can.
std::string vulkan_problem();

// Lists Vulkan's devices that list_devices() leaves out.
std::vector<SkippedDevice> skipped_devices(bool complete = true);

// Describes the memory of the device at `index` of list_devices(): a line for each heap and type of Vulkan's.
std::vector<std::string> memory_types(std::size_t index);

// How serious a report is. Reports are no errors; they belong in a log.
enum class Severity : std::uint8_t { info, warning };
struct Report {
    Severity severity = Severity::info;
    std::string text;
};

// Returns what was reported since the last time; a text comes once in a process.
std::vector<Report> take_reports();

class StreamSteps;
struct StreamPart;

class Device {
public:
    // Opens the device at `index` of list_devices(). Calls use the strategies in `fixed`, else those they were tuned
    // with. Throws DeviceError.
    static std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed = {}, const Tuning& tuning = {});
    virtual ~Device() = default;

    [[nodiscard]] virtual const Profile& profile() const = 0;

    // Returns the plan for a spec on this device, from a cache if possible. Thread-safe.
    virtual std::shared_ptr<const Plan> plan(const Spec& spec) = 0;

    // Throws MemoryError if a buffer of the plan is too large for the device, or if the device has not `bytes` free.
    // The driver is only asked about large amounts, so a call may still run out of memory.
    virtual void require_room(const Plan& plan, std::uint64_t bytes, std::string_view label) = 0;

    // Allocates memory for an array, contents undefined. `host_writes`: the host is going to fill it, so prefer memory
    // that no running command uses. Throws MemoryError, DeviceError.
    virtual std::shared_ptr<Storage> allocate(std::uint64_t bytes, bool host_writes) = 0;

    // Allocates memory that the host can read: the storage has host(). Returns null if such memory is scarce; then the
    // result is better copied to ordinary host memory.
    virtual std::shared_ptr<Storage> allocate_for_host(std::uint64_t bytes) = 0;

    // The functions below are carried out in the order of the calls, without waiting for one another. They throw
    // MemoryError, DeviceError, and Interrupted if they had to wait. Storages must belong to this device, and operands
    // must not overlap with results.

    // Runs a plan. `inputs` correspond to plan.inputs and `results` to plan.results; each has the size of its buffer.
    // With `wait` the function returns when the results are in place, and reads inputs in host memory in place until
    // then. Without it no result may be in host memory, and the function returns when everything is submitted. `label`
    // goes into error messages and debug labels. After Interrupted the results are undefined.
    virtual void run(const std::shared_ptr<const Plan>& plan, std::span<const InputLocation> inputs,
                     std::span<const ResultLocation> results, bool wait, std::string_view label, const Poll& poll) = 0;

    // Prepares the steps of a stream (stream.h), which use at most so many threads, or if that is 0 as many as they are
    // worth. Each step is an ordinary call unless a device has a faster way.
    virtual std::unique_ptr<StreamSteps> prepare_steps(std::span<const StreamPart> layers, unsigned threads);

    // upload() copies from host memory, which may change on return; download() to host memory, which is written on
    // return; copy() between storages; clear() fills with zeros.
    virtual void upload(const ResultLocation& to, const void* from, std::uint64_t bytes, const Poll& poll) = 0;
    virtual void download(void* to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) = 0;
    virtual void copy(const ResultLocation& to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) = 0;
    virtual void clear(const std::shared_ptr<Storage>& storage, const Poll& poll) = 0;

    // wait() returns when everything that writes the storage is done, synchronize() when all work is done. A failure of
    // the device is reported here, with the label of the first call that was not done.
    virtual void wait(const Storage& storage, const Poll& poll) = 0;
    virtual void synchronize(const Poll& poll) = 0;

    [[nodiscard]] virtual Statistics statistics() const = 0;

    // Writes the pipeline cache and returns all memory but that of arrays to the driver. Later calls throw DeviceError.
    // Closing twice is fine.
    virtual void close() = 0;
    [[nodiscard]] virtual bool closed() const = 0;
    // Returns true once the driver has reported the device lost. Calls on a lost device throw DeviceError.
    [[nodiscard]] virtual bool lost() const = 0;

    // Makes the device behave as if the driver lost it during the next run, for tests.
    virtual void lose_for_test() = 0;
};

// Returns the messages of the Vulkan validation layers so far, newest last. They are collected if the environment
// variable VKRNN_VALIDATION is 1, which loads the layers with synchronization validation. Throws DeviceError if it is 1
// and the layers are not installed.
std::vector<std::string> validation_messages();

// Returns the SPIR-V of a kernel of this package; empty if there is none of that name. Generated at build time.
std::span<const std::uint32_t> shader_code(std::string_view name);

}  // namespace vkrnn
