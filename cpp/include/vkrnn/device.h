// The interface of devices, which run plans. It has no Vulkan types, so only the files under src/vk/ need the Vulkan
// headers.
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

#include "vkrnn/network_plan.h"
#include "vkrnn/plan.h"
#include "vkrnn/profile.h"
#include "vkrnn/spec.h"

namespace vkrnn {

// Called repeatedly while a call waits. Returns true to interrupt the call.
using Poll = std::function<bool()>;

// Counters since the device was opened.
struct Statistics {
    std::uint64_t calls = 0;
    std::uint64_t submissions = 0;
    std::uint64_t dispatches = 0;
    std::uint64_t replayed = 0;          // calls that replayed the recorded commands of an earlier call
    std::uint64_t bytes_uploaded = 0;    // copied from host memory
    std::uint64_t bytes_downloaded = 0;  // copied to host memory
    std::uint64_t bytes_imported = 0;    // host memory that the device read in place
    std::uint64_t bytes_allocated = 0;   // device memory held now
    std::uint64_t failed_waits = 0;      // times that time loops were found to have run again: see run/failed_waits.h
    std::uint64_t pipelines = 0;         // compiled pipelines held now
    std::uint64_t plans = 0;             // plans held now
    double last_device_seconds = 0.0;    // device time of the last finished call, without copies
    double last_host_seconds = 0.0;      // host time of the last call, from entry to return
};

// Device memory that one or more arrays share. It may be released while commands that use it are running. If the host
// can read it, it stays readable after the device has been closed.
class Storage {
public:
    virtual ~Storage() = default;
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    // Returns the host address of the memory, or null if the host cannot access it. Call Device::wait() before using
    // it.
    [[nodiscard]] std::byte* host() const { return host_; }

    // Returns a number that grows with every change of the contents. Returns nothing while a HostView exists, because
    // the contents may then change unnoticed.
    [[nodiscard]] std::optional<std::uint64_t> version() const {
        return views_ == 0 ? std::optional(version_.load()) : std::nullopt;
    }
    // Call this after writing the contents or submitting commands that write them.
    void changed() { ++version_; }

protected:
    Storage(std::uint64_t bytes, std::byte* host) : bytes_(bytes), host_(host) {}

private:
    friend class HostView;

    std::uint64_t bytes_;
    std::byte* host_;
    std::atomic<std::uint64_t> version_ = 0, views_ = 0;
};

// Marks a storage as writable through its host address while the object exists.
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

// The location of a C-contiguous tensor: in host memory, or `offset` bytes into a storage.
template <class Byte>
struct TensorLocation {
    Byte* host = nullptr;
    std::shared_ptr<Storage> storage{};
    std::uint64_t offset = 0;
};
using InputLocation = TensorLocation<const void>;
using ResultLocation = TensorLocation<void>;

// Lists the devices, best first: discrete, integrated and virtual GPUs, the CPU itself, then Vulkan on the CPU. If
// `complete` is false, a machine without a GPU lists the CPU alone, because querying the Vulkan drivers takes long.
std::vector<Profile> list_devices(bool complete = true);

// Returns why Vulkan devices cannot be listed and what to install; empty if they can.
std::string vulkan_problem();

// Returns why CUDA devices cannot be listed; empty if they can.
std::string cuda_problem();

// Lists the GPUs that list_devices() leaves out.
std::vector<SkippedDevice> skipped_devices(bool complete = true);

// Describes the memory of the device at `index` of list_devices(), with a line for each Vulkan memory heap and type.
// Empty for the CPU itself.
std::vector<std::string> memory_types(std::size_t index);

// The severity of a report. Reports are messages for a log, not errors.
enum class Severity : std::uint8_t { info, warning };
struct Report {
    Severity severity = Severity::info;
    std::string text;
};

// Returns the reports since the last call. Each text is reported once per process.
std::vector<Report> take_reports();

class StreamRunner;
struct StreamPart;

class Device : public std::enable_shared_from_this<Device> {
public:
    // Opens the device at `index` of list_devices(). Calls use the strategies in `fixed`. If `fixed` is empty, they use
    // the strategies that `tuning` has for them. Throws DeviceError.
    static std::shared_ptr<Device> open(std::size_t index, const StrategyChoice& fixed = {}, const Tuning& tuning = {});
    // Opens the CPU without listing the devices. Throws DeviceError.
    static std::shared_ptr<Device> open_cpu();
    virtual ~Device() = default;

    [[nodiscard]] virtual const Profile& profile() const = 0;

    // Returns the plan for a spec on this device, from a cache if possible. Thread-safe.
    virtual std::shared_ptr<const Plan> plan(const Spec& spec) = 0;
    // Returns the plan for a call whose float32 products may be rounded to TF32 if `tf32` is true: see spec_on().
    std::shared_ptr<const Plan> plan_call(const Spec& spec, bool tf32) { return plan(spec_on(spec, profile(), tf32)); }

    // Returns the plan of a network's call. `tf32`: see plan_call().
    [[nodiscard]] NetworkPlan plan_network(const NetworkSpec& spec, bool tf32);
    // Returns what the caller fixed when it opened the device.
    [[nodiscard]] virtual const StrategyChoice& fixed() const = 0;

    // Throws MemoryError if a buffer of the plan is too large for the device, or if the device does not have `bytes`
    // free. Asks the driver only about large amounts, so a call may still run out of memory.
    virtual void require_room(const Plan& plan, std::uint64_t bytes, std::string_view label) = 0;

    // Allocates memory for an array. Its contents are undefined. Set `host_writes` if the host will fill it: memory
    // that no running command uses is then preferred. Throws MemoryError, DeviceError.
    virtual std::shared_ptr<Storage> allocate(std::uint64_t bytes, bool host_writes) = 0;

    // Allocates memory that the host can read, so host() is not null. Returns null if such memory is scarce; callers
    // should then copy the result to ordinary host memory.
    virtual std::shared_ptr<Storage> allocate_for_host(std::uint64_t bytes) = 0;

    // The device executes the functions below in the order of the calls; they do not wait for each other to finish.
    // They throw MemoryError, DeviceError, and Interrupted if `poll` stopped a wait. Storages must belong to this
    // device. Operands must not overlap with results.

    // Runs a plan. `inputs` correspond to plan.inputs and `results` to plan.results; each has the size of its buffer.
    // With `wait`, returns when the results are complete, and reads inputs in host memory in place until then. Without
    // `wait`, returns when everything is submitted; no result may be in host memory. `label` appears in error messages
    // and debug labels. After Interrupted, the results are undefined.
    virtual void run(const std::shared_ptr<const Plan>& plan, std::span<const InputLocation> inputs,
                     std::span<const ResultLocation> results, bool wait, std::string_view label, const Poll& poll) = 0;

    // Makes what runs the steps of a stream (stream.h). A step uses at most `threads` threads; 0 means as many as its
    // work is worth. Each step is an ordinary call unless the device has a faster way.
    virtual std::unique_ptr<StreamRunner> make_stream_runner(std::span<const StreamPart> layers, unsigned threads);

    // upload() copies from host memory, which the caller may change after the call. download() copies to host memory
    // and returns when it is written. copy() copies between storages. clear() fills a storage with zeros.
    virtual void upload(const ResultLocation& to, const void* from, std::uint64_t bytes, const Poll& poll) = 0;
    virtual void download(void* to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) = 0;
    virtual void copy(const ResultLocation& to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) = 0;
    virtual void clear(const std::shared_ptr<Storage>& storage, const Poll& poll) = 0;

    // wait() returns when all writes to the storage are done, synchronize() when all work is done. Both report a
    // failure of the device, with the label of the first call that was not completed.
    virtual void wait(const Storage& storage, const Poll& poll) = 0;
    virtual void synchronize(const Poll& poll) = 0;

    [[nodiscard]] virtual Statistics statistics() const = 0;

    // Writes the pipeline cache and frees all memory except that of arrays. Later calls throw DeviceError. Closing
    // twice is allowed.
    virtual void close() = 0;
    [[nodiscard]] virtual bool closed() const = 0;
    // Returns true once the driver has reported the device lost. Calls on a lost device throw DeviceError.
    [[nodiscard]] virtual bool lost() const = 0;

    // Makes the device behave as if the driver lost it during the next run. For tests.
    virtual void lose_for_test() = 0;
};

// Returns the messages of the Vulkan validation layers so far, newest last. The environment variable VKRNN_VALIDATION=1
// loads the layers with synchronization validation and collects their messages. Throws DeviceError if it is 1 and the
// layers are not installed.
std::vector<std::string> validation_messages();

// Returns the SPIR-V of a kernel, which was generated at build time. Empty if there is no kernel of that name.
std::span<const std::uint32_t> shader_code(std::string_view name);

}  // namespace vkrnn
