// The handler of vkrnn's calls in programs that XLA has compiled: `vkrnn.jax` registers it with XLA's foreign function
// interface (FFI), once for programs on the CPU and once for programs on CUDA devices. It runs on XLA's threads,
// without the GIL and without Python, except when a program runs for the first time on a CUDA device.
//
// A call has these attributes. They stay as they are, because exported programs contain them:
//   cell, gradients      the operation: "lstm", false
//   arguments, results   the names of the operands and of the results, in their order, separated by commas. The
//                        operand `other_cells` is in older programs, whose `cell_gradient` is [N, DH]: a byte, which is
//                        not 0 if cells other than the last ones have gradients
//   descriptor           a dictionary of the descriptor's properties; those that are left out have their defaults
//   device               a number from xla_device(); 0 for a CPU device of the handler's own, or for vkrnn's shared
//                        device of the GPU that the operands are on
//   float32              "tf32" if products may be rounded; else absent
#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>

#include "bindings.h"
#include "vkrnn/cuda.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"
#include "vkrnn/run.h"
#include "xla_target.h"

namespace vkrnn::python {
namespace {

namespace ffi = xla::ffi;

const std::string kWhere = "[vkrnn.jax] ";

template <class T>
T attribute(const ffi::Dictionary& attributes, std::string_view name) {
    const auto found = attributes.get<T>(name);
    if (found.has_error()) throw ValueError(kWhere + std::string(name) + ": " + found.error().message());
    return *found;
}

std::vector<std::string_view> names_in(std::string_view text) {
    std::vector<std::string_view> names;
    while (!text.empty()) {
        names.push_back(text.substr(0, text.find(',')));
        text.remove_prefix(std::min(text.size(), names.back().size() + 1));
    }
    return names;
}

Descriptor read_properties(const Cell& cell, const ffi::Dictionary& given) {
    Descriptor descriptor = default_descriptor(cell.kind);
    std::size_t known = 0;
    for (const Property& property : cell.properties) {
        if (!given.contains(property.name)) continue;
        ++known;
        if (const auto* activation = std::get_if<ActivationProperty>(&property.kind)) {
            const auto chosen = static_cast<Activation>(attribute<std::int64_t>(given, property.name));
            if (name_of(chosen).empty())
                throw ValueError(kWhere + std::string(property.name) + ": there is no such activation");
            descriptor.activations.at(activation->slot) = chosen;
        } else if (const auto* number = std::get_if<NumberProperty>(&property.kind)) {
            descriptor.numbers.at(number->slot) = attribute<double>(given, property.name);
        } else if (const auto* count = std::get_if<CountProperty>(&property.kind)) {
            descriptor.counts.at(count->slot) = attribute<std::int64_t>(given, property.name);
        } else if (const auto* choice = std::get_if<ChoiceProperty>(&property.kind)) {
            descriptor.set(choice->flag, attribute<std::string_view>(given, property.name) == choice->words[1]);
        } else {
            descriptor.set(std::get<Flag>(property.kind), attribute<bool>(given, property.name));
        }
    }
    if (known != given.size())
        throw ValueError(kWhere + "descriptor: the program has a property that this version of vkrnn does not know");
    return descriptor;
}

std::string dtype_of(const ffi::AnyBuffer& buffer) {
    switch (buffer.element_type()) {
        case ffi::DataType::F16: return "float16";
        case ffi::DataType::BF16: return "bfloat16";
        case ffi::DataType::F32: return "float32";
        case ffi::DataType::F64: return "float64";
        case ffi::DataType::PRED: return "bool";
        case ffi::DataType::S8: return "int8";
        case ffi::DataType::S16: return "int16";
        case ffi::DataType::S32: return "int32";
        case ffi::DataType::S64: return "int64";
        case ffi::DataType::U8: return "uint8";
        case ffi::DataType::U16: return "uint16";
        case ffi::DataType::U32: return "uint32";
        case ffi::DataType::U64: return "uint64";
        default: return "XLA's number " + std::to_string(static_cast<int>(buffer.element_type()));
    }
}

template <class Integer>
std::vector<std::int64_t> integers_of(const void* data, std::size_t count) {
    const auto* const first = static_cast<const Integer*>(data);
    std::vector<std::int64_t> integers;
    // A number too large for an int64 becomes a negative one; either is refused.
    for (std::size_t i = 0; i < count; ++i) integers.push_back(static_cast<std::int64_t>(first[i]));
    return integers;
}

std::vector<std::int64_t> read_integers(const ffi::AnyBuffer& buffer, const XlaTarget& target) {
    std::vector<std::byte> copy;
    const void* const data = target.read(buffer.untyped_data(), buffer.size_bytes(), copy);
    const std::size_t count = buffer.element_count();
    switch (buffer.element_type()) {
        case ffi::DataType::S8: return integers_of<std::int8_t>(data, count);
        case ffi::DataType::S16: return integers_of<std::int16_t>(data, count);
        case ffi::DataType::S32: return integers_of<std::int32_t>(data, count);
        case ffi::DataType::S64: return integers_of<std::int64_t>(data, count);
        case ffi::DataType::U8: return integers_of<std::uint8_t>(data, count);
        case ffi::DataType::U16: return integers_of<std::uint16_t>(data, count);
        case ffi::DataType::U32: return integers_of<std::uint32_t>(data, count);
        case ffi::DataType::U64: return integers_of<std::uint64_t>(data, count);
        default: return {};
    }
}

// The operands of a call: XLA's buffers, or copies in the form that the core takes.
class Operands {
public:
    Operands(const ffi::RemainingArgs& buffers, std::string_view names, const XlaTarget& target,
             const std::string& prefix)
        : target_(target) {
        std::size_t count = 0;
        for (const std::string_view name : names_in(names)) {
            const auto buffer = buffers.get<ffi::AnyBuffer>(count++);
            if (buffer.has_error()) throw ValueError(prefix + " " + std::string(name) + ": the operand is missing");
            if (name == "other_cells") {
                others_ = *buffer;
                continue;
            }
            const Argument argument = argument_named(name, prefix);
            const auto shape = buffer->dimensions();
            TensorInfo info{dtype_of(*buffer), {shape.begin(), shape.end()}, {}};
            if (argument == Argument::lengths) {
                info.integers = read_integers(*buffer, target);
                lengths_.assign(info.integers.begin(), info.integers.end());
                locations_[argument] = {lengths_.data()};
            } else {
                locations_[argument] = target.input(buffer->untyped_data(), buffer->size_bytes());
            }
            infos_[argument] = std::move(info);
        }
        if (count != buffers.size()) throw ValueError(prefix + " arguments: some operands have no name");
    }

    [[nodiscard]] Call check(const Descriptor& descriptor, bool gradients, const std::string& prefix) const {
        Call call = check_call(descriptor, gradients, infos_);
        std::vector<std::byte> copy;
        if (others_ && *static_cast<const std::uint8_t*>(target_.read(others_->untyped_data(), 1, copy)) != 0)
            throw NotImplementedError(prefix + " cell_gradient: this program was made by an older vkrnn, which has " +
                                      "gradients of the cells after each direction's last step only");
        return call;
    }

    [[nodiscard]] const InputLocation& at(Argument argument) const { return locations_.at(argument); }

private:
    const XlaTarget& target_;
    Arguments infos_;
    std::map<Argument, InputLocation> locations_;
    std::optional<ffi::AnyBuffer> others_;
    std::vector<std::int32_t> lengths_;  // the device reads what was checked
};

// Returns the locations of the results in the call's order. Throws if a result is missing or has another shape or
// dtype.
std::vector<ResultLocation> result_locations(const Call& call, const ffi::RemainingRets& buffers,
                                             std::string_view names, const XlaTarget& target,
                                             const std::string& prefix) {
    const std::vector<std::string_view> given = names_in(names);
    std::vector<ResultLocation> locations;
    for (const ResultInfo& result : call.results) {
        const auto at = static_cast<std::size_t>(std::ranges::find(given, result.name) - given.begin());
        auto buffer = buffers.get<ffi::AnyBuffer>(at);
        const bool fits = buffer.has_value() && dtype_of(**buffer) == name_of(call.spec.dtype) &&
                          std::ranges::equal((*buffer)->dimensions(), result.shape);
        if (!fits)
            throw ValueError(prefix + " " + result.name + ": the program has no result of the call's shape and dtype");
        locations.push_back(target.result((*buffer)->untyped_data(), (*buffer)->size_bytes()));
    }
    if (call.results.size() != buffers.size())
        throw ValueError(prefix + " results: the program has more than the call");
    return locations;
}

bool allows_tf32(const ffi::Dictionary& attributes) {
    if (!attributes.contains("float32")) return false;
    const auto precision = attribute<std::string_view>(attributes, "float32");
    if (precision != "tf32")
        throw ValueError(kWhere + "float32: expected 'tf32', got '" + std::string(precision) + "'");
    return true;
}

void run(const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results, const ffi::Dictionary& attributes,
         const XlaTarget& target) {
    const auto cell_name = attribute<std::string_view>(attributes, "cell");
    const Cell* const cell = find_cell(cell_name);
    if (cell == nullptr) throw ValueError(kWhere + "there is no cell '" + std::string(cell_name) + "'");
    const bool gradients = attribute<bool>(attributes, "gradients");
    const std::string prefix = message_prefix(*cell, gradients, {});
    const Descriptor descriptor = read_properties(*cell, attribute<ffi::Dictionary>(attributes, "descriptor"));

    const Operands operands(arguments, attribute<std::string_view>(attributes, "arguments"), target, prefix);
    const Call call = operands.check(descriptor, gradients, prefix);
    const std::vector<ResultLocation> to =
        result_locations(call, results, attribute<std::string_view>(attributes, "results"), target, prefix);

    Device& device = target.device();
    const std::shared_ptr<const Plan> plan = device.plan_call(call.spec, allows_tf32(attributes));
    std::vector<InputLocation> inputs;
    for (const auto& [argument, index] : plan->inputs) inputs.push_back(operands.at(argument));
    for (std::size_t i = 0; i < to.size(); ++i) {
        const auto elements = static_cast<std::uint64_t>(elements_of(call.results[i].shape));
        require_bytes(plan->buffers.at(plan->results.at(i)), elements * storage_bytes(call.spec.dtype));
    }
    run_plan(device, plan, inputs, to, !target.on_cuda(), prefix, &ending_without_gil);
}

// Returns the number of the CUDA device that the operands and results are on; none if all are empty.
std::optional<int> ordinal_of(const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
    std::optional<int> ordinal;
    const auto look = [&](const ffi::AnyBuffer& buffer) {
        if (!ordinal && buffer.size_bytes() != 0)
            ordinal = cuda_ordinal_at(reinterpret_cast<std::uintptr_t>(buffer.untyped_data()));
    };
    for (std::size_t i = 0; i < arguments.size(); ++i) look(*arguments.get<ffi::AnyBuffer>(i));
    for (std::size_t i = 0; i < results.size(); ++i) look(**results.get<ffi::AnyBuffer>(i));
    if (ordinal == -1) throw DeviceError(kWhere + "the arrays are not in the memory of a CUDA device");
    return ordinal;
}

// Calls `body`, and returns its errors as XLA's.
template <class Body>
ffi::Error with_errors(const Body& body) {
    const InsideWithoutGil inside;
    try {
        const std::shared_ptr<const EnvironmentValues> environment = xla_environment();
        const EnvironmentCopy copy(*environment);
        body();
        return ffi::Error::Success();
    } catch (const TypeError& error) {
        return {ffi::ErrorCode::kInvalidArgument, error.what()};
    } catch (const ValueError& error) {
        return {ffi::ErrorCode::kInvalidArgument, error.what()};
    } catch (const NotImplementedError& error) {
        return {ffi::ErrorCode::kUnimplemented, error.what()};
    } catch (const MemoryError& error) {
        return {ffi::ErrorCode::kResourceExhausted, error.what()};
    } catch (const std::bad_alloc&) {
        return {ffi::ErrorCode::kResourceExhausted, "vkrnn: out of host memory"};
    } catch (const DeviceError& error) {
        return {ffi::ErrorCode::kFailedPrecondition, error.what()};
    } catch (const Interrupted&) {
        return {ffi::ErrorCode::kCancelled, "vkrnn: the process is about to end"};
    } catch (const std::exception& error) {
        return {ffi::ErrorCode::kInternal, error.what()};
    }
}

std::int64_t device_number(const ffi::Dictionary& attributes) { return attribute<std::int64_t>(attributes, "device"); }

ffi::Error handle(const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results,
                  const ffi::Dictionary& attributes) {
    return with_errors([&] {
        const std::int64_t number = device_number(attributes);
        run(arguments, results, attributes, target_on_host(number));
    });
}

// Memory for the call comes from XLA, which usually holds most of the GPU's.
ffi::Error handle_on_cuda(void* stream, ffi::ScratchAllocator scratch, const ffi::RemainingArgs& arguments,
                          const ffi::RemainingRets& results, const ffi::Dictionary& attributes) {
    return with_errors([&] {
        const std::optional<int> ordinal = ordinal_of(arguments, results);
        if (!ordinal) return;  // nothing to compute
        const auto allocate = [&](std::uint64_t bytes) -> std::uint64_t {
            const auto found = scratch.Allocate(bytes + kCudaAlignment - 1);  // XLA aligns to 16 bytes at most
            const auto first = found ? reinterpret_cast<std::uint64_t>(*found) : 0;
            return (first + kCudaAlignment - 1) / kCudaAlignment * kCudaAlignment;
        };
        const OnCudaStream ordered(reinterpret_cast<std::uintptr_t>(stream), allocate);
        run(arguments, results, attributes, target_on_cuda(device_number(attributes), *ordinal));
    });
}

XLA_FFI_DEFINE_HANDLER(cpu_handler, handle, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER(cuda_handler, handle_on_cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Ctx<ffi::ScratchAllocator>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs());

}  // namespace

void register_xla(py::module_& module) {
    module.def("xla_handler", []() -> py::object {
        read_xla_environment();
        return py::capsule(reinterpret_cast<void*>(cpu_handler));
    });
    module.def("xla_cuda_handler", []() -> py::object { return py::capsule(reinterpret_cast<void*>(cuda_handler)); });
    module.def("xla_device", &xla_number, py::arg("device"));
}

}  // namespace vkrnn::python
