// Lists, opens, closes and counts devices. Whatever may wait for a driver runs without the GIL.
#include "vkrnn/device.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <variant>

#include "bindings.h"
#include "vkrnn/costs.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"
#include "vkrnn/profile.h"

namespace vkrnn::python {
namespace {

using WithoutGil = py::call_guard<Unlocked>;

// A copy of the environment variables that listing and opening devices read. It is made while the GIL keeps other
// threads from changing them.
struct DeviceEnvironment : EnvironmentCopy {
    DeviceEnvironment() : EnvironmentCopy(kDeviceVariables) {}
};
using ListsWithoutGil = py::call_guard<DeviceEnvironment, Unlocked>;

const char* type_text(DeviceType type) {
    switch (type) {
        case DeviceType::integrated_gpu: return "integrated_gpu";
        case DeviceType::discrete_gpu: return "discrete_gpu";
        case DeviceType::virtual_gpu: return "virtual_gpu";
        case DeviceType::cpu: return "cpu";
        case DeviceType::other: break;
    }
    return "other";
}

const char* backend_text(Backend backend) {
    switch (backend) {
        case Backend::vulkan: return "vulkan";
        case Backend::cuda: return "cuda";
        case Backend::native: break;
    }
    return "native";
}

// Converts a str to UTF-8. Lone surrogates, which UTF-8 cannot represent, are escaped.
std::string utf8(py::handle text) { return py::bytes(text.attr("encode")("utf-8", "backslashreplace")); }

std::string read_name(const std::string& name, py::handle object) {
    if (!py::isinstance<py::str>(object)) {
        throw TypeError("[Device] " + name + ": expected a str, got " + type_name(object));
    }
    return utf8(object);
}

std::uint32_t read_size(const std::string& name, py::handle object) {
    try {
        return object.cast<std::uint32_t>();
    } catch (const py::cast_error&) {
        const std::string got = py::isinstance<py::int_>(object) ? std::string(py::str(object)) : type_name(object);
        throw TypeError("[Device] " + name + ": expected an int of at least 0, got " + got);
    }
}

// If there is a `profile`, refuses unknown names before it reads their values.
StrategyChoice read_choice(const py::dict& options, const Profile* profile = nullptr) {
    StrategyChoice fixed;
    for (const auto& [key, value] : options) {
        const std::string name = utf8(key);
        if (name == "schedule") {
            fixed.schedule = read_name(name, value);
        } else if (name == "gemm") {
            fixed.gemm = read_name(name, value);
        } else if (name == "wavefront") {
            fixed.wavefront = read_size(name, value);
        } else {
            if (profile != nullptr) check_name(name, *profile);
            fixed.parameters[name] = read_size(name, value);
        }
    }
    return fixed;
}

// Reads and checks the options that select strategies.
StrategyChoice make_choice(const Profile& profile, const py::dict& options) {
    StrategyChoice fixed = read_choice(options, &profile);
    check_choice(fixed, profile);
    return fixed;
}

// The sizes of a tuned call, by name.
constexpr std::array kTunedSizes = std::to_array<std::pair<const char*, std::int64_t TunedCall::*>>({
    {"T", &TunedCall::T},
    {"N", &TunedCall::N},
    {"I", &TunedCall::I},
    {"H", &TunedCall::H},
    {"D", &TunedCall::D},
    {"phases", &TunedCall::phases},
});

py::dict tuned_call_of(const CheckedCall& checked, const Profile& profile, bool tf32) {
    const TunedCall call = tuned_call(spec_on(checked.call.spec, profile, tf32));
    py::dict entry;
    entry["operation"] = call.operation;
    entry["training"] = call.training;
    entry["dtype"] = name_of(call.dtype);
    entry["float32"] = name_of(call.precision);
    for (const auto& [name, member] : kTunedSizes) entry[name] = call.*member;
    return entry;
}

// Returns the element of `all` with this name. Throws ValueError if there is none.
template <class Named, std::size_t count>
Named read_named(const std::array<Named, count>& all, const std::string& what, py::handle object) {
    const auto name = object.cast<std::string>();
    const auto* const found = std::ranges::find(all, name, [](Named each) { return name_of(each); });
    if (found == all.end()) throw ValueError("no " + what + " '" + name + "'");
    return *found;
}

// Reads a dict as made by tuned_call_of, with the strategies added. Throws ValueError if it is not one.
std::pair<const TunedCall, StrategyChoice> read_tuned(const py::dict& entry) {
    try {
        TunedCall call{.operation = entry["operation"].cast<std::string>(), .training = entry["training"].cast<bool>()};
        call.dtype = read_named(kDtypes, "dtype", entry["dtype"]);
        call.precision = read_named(kPrecisions, "float32", entry["float32"]);
        for (const auto& [name, member] : kTunedSizes) call.*member = entry[name].cast<std::int64_t>();
        return {std::move(call), read_choice(entry["strategy"].cast<py::dict>())};
    } catch (const py::error_already_set& error) {
        throw ValueError(error.what());
    } catch (const py::cast_error& error) {
        throw ValueError(error.what());
    } catch (const TypeError& error) {
        throw ValueError(error.what());
    }
}

// A class of its own, because pybind11 would convert a plain map to a dict.
struct Tuned {
    Tuning calls;
};

Tuned make_tuning(const std::vector<py::dict>& entries) {
    Tuned tuned;
    for (const py::dict& entry : entries) tuned.calls.insert(read_tuned(entry));
    return tuned;
}

// Estimates the time of a call with a fixed strategy as a function of the costs.
struct Estimator {
    Spec spec;
    Profile profile;
    StrategyChoice fixed;

    [[nodiscard]] std::pair<double, double> at(const std::vector<double>& values) const {
        const Estimate times = estimate(spec, profile, fixed, values);
        return {times.schedule, times.gemm};
    }
};

// Converts names or variants of strategies to a dict from the option that takes them.
template <typename Listed>
py::dict by_option(const Listed& listed) {
    py::dict dict;
    dict["schedule"] = listed.schedule;
    dict["gemm"] = listed.gemm;
    return dict;
}

// Opens a device and keeps it, so that it is not lost if a signal handler raises an exception before Python code has
// received it. Only one thread may call open() at a time.
class Opener {
public:
    Opener(std::size_t index, StrategyChoice fixed) : index_(index), fixed_(std::move(fixed)) {}

    std::shared_ptr<Device> open(const Tuned& tuning) {
        if (!device_) device_ = Device::open(index_, fixed_, tuning.calls);
        return device_;
    }

private:
    std::size_t index_;
    StrategyChoice fixed_;
    std::shared_ptr<Device> device_;
};

// The counters of Device.statistics(), by name.
struct Counter {
    const char* name;
    std::variant<std::uint64_t Statistics::*, double Statistics::*> member;
};
constexpr std::array kCounters = std::to_array<Counter>({
    {"calls", &Statistics::calls},
    {"submissions", &Statistics::submissions},
    {"dispatches", &Statistics::dispatches},
    {"repeated", &Statistics::replayed},
    {"bytes_uploaded", &Statistics::bytes_uploaded},
    {"bytes_downloaded", &Statistics::bytes_downloaded},
    {"bytes_imported", &Statistics::bytes_imported},
    {"bytes_allocated", &Statistics::bytes_allocated},
    {"failed_waits", &Statistics::failed_waits},
    {"pipelines", &Statistics::pipelines},
    {"plans", &Statistics::plans},
    {"last_device_seconds", &Statistics::last_device_seconds},
    {"last_host_seconds", &Statistics::last_host_seconds},
});
static_assert(sizeof(Statistics) == kCounters.size() * 8, "a counter is missing in the list, or no longer counted");

py::dict statistics(const Device& device) {
    const Statistics counted = device.statistics();
    py::dict dict;
    for (const Counter& counter : kCounters) {
        std::visit([&](const auto member) { dict[counter.name] = counted.*member; }, counter.member);
    }
    return dict;
}

}  // namespace

void register_devices(py::module_& module) {
    py::class_<Profile>(module, "Profile", "What a device is and can do.")
        .def_property_readonly("backend", [](const Profile& profile) { return backend_text(profile.backend); })
        .def_readonly("name", &Profile::name)
        .def_readonly("driver", &Profile::driver)
        .def_readonly("driver_version", &Profile::driver_version)
        .def_readonly("api_version", &Profile::api_version)
        .def_property_readonly("type", [](const Profile& profile) { return type_text(profile.type); })
        .def_readonly("vendor_id", &Profile::vendor_id)
        .def_readonly("device_id", &Profile::device_id)
        .def_readonly("subgroup_size", &Profile::subgroup_size)
        .def_readonly("float64", &Profile::float64)
        .def_readonly("storage_16bit", &Profile::storage_16bit)
        .def_readonly("max_workgroup_invocations", &Profile::max_workgroup_invocations)
        .def_readonly("max_shared_memory", &Profile::max_shared_memory)
        .def_readonly("max_push_constants", &Profile::max_push_constants)
        .def_readonly("memory_bytes", &Profile::memory_bytes)
        .def_readonly("max_allocation", &Profile::max_allocation)
        .def_readonly("unified_memory", &Profile::unified_memory)
        .def_readonly("compute_units", &Profile::compute_units)
        .def_readonly("matrix_side", &Profile::matrix_side)
        .def_readonly("max_loop_iterations", &Profile::max_loop_iterations);

    py::class_<StrategyChoice>(module, "StrategyChoice", "What a device's options fix.");

    py::class_<Tuned>(module, "Tuning", "The strategies that calls were tuned with.");

    py::class_<Device, std::shared_ptr<Device>>(module, "Device")
        .def_property_readonly("profile", &Device::profile)
        .def_property_readonly("closed", &Device::closed)
        .def_property_readonly("lost", &Device::lost)
        .def("statistics", &statistics)
        .def(
            "synchronize", [](Device& device) { device.synchronize(&interrupted); }, WithoutGil())
        .def("close", &Device::close, WithoutGil())
        .def("lose_for_test", &Device::lose_for_test);

    py::class_<Opener>(module, "Opener", "Opens a device at first use and keeps it.")
        .def("__init__", constructor<std::size_t, StrategyChoice>([](std::size_t index, StrategyChoice fixed) {
                 return Opener(index, std::move(fixed));
             }),
             Constructor{}, py::arg("index"), py::arg("fixed"))
        .def("open", &Opener::open, py::arg("tuning"), ListsWithoutGil());

    module.def("list_devices", &list_devices, py::arg("complete") = true, ListsWithoutGil());
    module.def("vulkan_problem", &vulkan_problem, ListsWithoutGil());
    module.def("cuda_problem", &cuda_problem, ListsWithoutGil());
    module.def(
        "skipped_devices",
        [](bool complete) {
            std::vector<SkippedDevice> skipped;
            {
                const DeviceEnvironment environment;
                const Unlocked unlocked;
                skipped = skipped_devices(complete);
            }
            std::vector<std::tuple<std::string, std::string, std::string>> made;
            for (const auto& device : skipped) made.emplace_back(device.name, type_text(device.type), device.reason);
            return made;
        },
        py::arg("complete") = true);
    module.def("memory_types", &memory_types, py::arg("index"), ListsWithoutGil());
    module.def("take_reports", [] {
        py::list made;
        for (const Report& report : take_reports())
            made.append(
                py::make_tuple(report.severity == Severity::warning ? "WARNING" : "INFO", to_python(report.text)));
        return made;
    });
    module.def(
        "list_strategies", [](const Profile& profile) { return by_option(list_strategies(profile)); },
        py::arg("profile"));
    module.def(
        "list_variants", [](const Profile& profile) { return by_option(list_variants(profile)); }, py::arg("profile"));
    module.def("make_tuning", &make_tuning, py::arg("entries"));
    module.def("make_choice", &make_choice, py::arg("profile"), py::arg("options"));
    module.def("validation_messages", &validation_messages);
    module.def("cache_directory", [] {
        const std::string path = cache_directory();
        // Decodes like os.fsdecode(), so that Python's file functions handle bytes that are not UTF-8.
        return py::reinterpret_steal<py::str>(
            PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
    });
}

void register_tuned_calls(py::module_& module) {
    module.def("tuned_call", &tuned_call_of, py::arg("call"), py::arg("profile"), py::arg("tf32") = false);
    module.def("cost_values", &cost_values, py::arg("profile"));
    py::class_<Estimator>(module, "Estimator")
        .def("__init__",
             constructor<const CheckedCall&, const Profile&, const py::dict&, bool>(
                 [](const CheckedCall& call, const Profile& profile, const py::dict& strategy, bool tf32) {
                     return Estimator{spec_on(call.call.spec, profile, tf32), profile, read_choice(strategy)};
                 }),
             Constructor{}, py::arg("call"), py::arg("profile"), py::arg("strategy"), py::arg("tf32") = false)
        .def("__call__", &Estimator::at, py::arg("values"));
}

}  // namespace vkrnn::python
