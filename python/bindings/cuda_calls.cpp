// Calls on memory of a CUDA device that another library owns, by addresses.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "vkrnn/cuda.h"
#include "vkrnn/environment.h"
#include "vkrnn/run.h"

namespace vkrnn::python {
namespace {

using Addresses = std::vector<std::uintptr_t>;
using Given = std::vector<std::tuple<std::string, std::string, TensorShape>>;           // names, dtypes and shapes
using Biases = std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t>;              // their sum, the biases
using Copies = std::vector<std::tuple<std::uintptr_t, std::uintptr_t, std::uint64_t>>;  // to, from, bytes

// Returns a function that calls one of Python's, which must outlive it.
CudaAllocator allocator_of(py::handle function) {
    if (function.is_none()) return {};
    return [function](std::uint64_t bytes) {
        const py::gil_scoped_acquire gil;
        return py::cast<std::uint64_t>(function(bytes));
    };
}

std::vector<CudaCopy> copies_of(const Copies& copies) {
    std::vector<CudaCopy> found;
    for (const auto& [to, from, bytes] : copies) found.push_back({to, from, bytes});
    return found;
}

// A checked call and its plan, which can run many times.
class CudaCall {
public:
    // `given` has all arguments but the lengths, which come last. Their numbers are only checked. Throws what
    // check_call() throws.
    CudaCall(std::shared_ptr<Device> device, const std::string& cell_name, bool gradients, py::handle descriptor,
             const Given& given, bool tf32, const std::optional<py::array>& lengths)
        : device_(std::move(device)) {
        const Cell& cell = require_cell(cell_name);
        prefix_ = message_prefix(cell, gradients, {});
        Arguments infos;
        for (const auto& [name, dtype, shape] : given) {
            order_.push_back(argument_named(name, prefix_));
            infos[order_.back()] = {dtype, shape};
        }
        if (lengths) {
            infos[Argument::lengths] = info_of(*lengths, Argument::lengths);
            order_.push_back(Argument::lengths);
        }
        call_ = check_call(read_descriptor(cell, descriptor, prefix_), gradients, infos);
        const Unlocked unlocked;
        plan_ = device_->plan_call(call_.spec, tf32);
    }

    [[nodiscard]] const Call& call() const { return call_; }

    // Runs on a stream. The arrays are at `addresses`, in the order of the arguments; lengths are 32-bit integers
    // there. The results go to `results`. `allocator` is a function like CudaAllocator, or None. Before the call, the
    // biases are added, which is where the argument `bias` may be. After it, the copies within the device's memory are
    // made. The caller keeps all memory until the call returns, and orders later uses on the stream.
    void run(const Addresses& addresses, const Addresses& results, std::uintptr_t stream, py::handle allocator,
             const Copies& after, const std::optional<Biases>& biases) const {
        const OnCudaStream ordered(stream, allocator_of(allocator));
        std::vector<InputLocation> from;
        for (const auto& [argument, index] : plan_->inputs) {
            const auto at = static_cast<std::size_t>(std::ranges::find(order_, argument) - order_.begin());
            from.push_back({nullptr, borrowed(addresses.at(at), index), 0});
        }
        std::vector<ResultLocation> to;
        for (std::size_t i = 0; i < plan_->results.size(); ++i)
            to.push_back({nullptr, borrowed(results.at(i), plan_->results[i]), 0});
        const EnvironmentCopy environment(kCallVariables);  // copied while the GIL keeps others from changing it
        const Unlocked unlocked;
        if (biases) add_biases(std::get<0>(*biases), std::get<1>(*biases), std::get<2>(*biases));
        run_plan(*device_, plan_, from, to, false, prefix_, &interrupted);
        copy_cuda_memory(*device_, copies_of(after));
    }

    // Returns the bytes of memory that run_layer() needs besides what the plan does: for the sum of the biases, and for
    // the cells if the call has several steps.
    [[nodiscard]] std::uint64_t layer_bytes() const { return bias_bytes() + cells_bytes(); }

    // Runs a forward call without training state for one of PyTorch's layers. `weights` are the addresses of the
    // layer's weight_ih, weight_hh, bias_ih, bias_hh and peephole, of which absent ones are 0; `starts` and `ends`
    // those of the first and last states, h and c. The biases are added first. Of `bytes` bytes of memory,
    // layer_bytes() are used, and the others if the plan needs no more of them; else `allocator` is asked. Returns the
    // bytes that the plan needs. Returns nothing, and does nothing, if the device was closed or lost.
    [[nodiscard]] std::optional<std::uint64_t> run_layer(std::uintptr_t source, const Addresses& weights,
                                                         const Addresses& starts, std::uintptr_t output,
                                                         const Addresses& ends, std::uintptr_t stream,
                                                         std::uintptr_t memory, std::uint64_t bytes,
                                                         py::handle allocator) const {
        const std::uint64_t own = layer_bytes();
        if (weights.size() != 5 || ends.size() != plan_->results.size() || bytes < own)
            throw std::invalid_argument("the addresses do not match the layer's call");
        if (device_->closed() || device_->lost()) return std::nullopt;
        std::uint64_t taken = 0;
        const CudaAllocator ask = allocator_of(allocator);
        const OnCudaStream ordered(stream, [&](std::uint64_t count) {
            taken = count;
            return count <= bytes - own ? memory + own : ask(count);
        });
        std::vector<InputLocation> from;
        for (const auto& [argument, index] : plan_->inputs)
            from.push_back({nullptr, borrowed(layer_address(argument, source, weights, starts, memory), index), 0});
        const std::uint64_t end = result_bytes(0) / steps();
        std::vector<ResultLocation> to{{nullptr, borrowed(output, plan_->results[0]), 0}};
        std::vector<CudaCopy> after{{ends[0], output + result_bytes(0) - end, end}};
        if (ends.size() > 1) {  // one step's cells are the last ones
            const std::uintptr_t cells = cells_bytes() == 0 ? ends[1] : memory + bias_bytes();
            to.push_back({nullptr, borrowed(cells, plan_->results[1]), 0});
            if (cells != ends[1]) after.push_back({ends[1], cells + result_bytes(1) - end, end});
        }
        const EnvironmentCopy environment(kCallVariables);
        const Unlocked unlocked;
        if (bias_bytes() != 0) add_biases(memory, weights[2], weights[3]);
        run_plan(*device_, plan_, from, to, false, prefix_, &interrupted);
        copy_cuda_memory(*device_, after);
        return taken;
    }

private:
    // Returns the address of an argument of run_layer(). The sum of the biases is where its memory begins.
    [[nodiscard]] std::uintptr_t layer_address(Argument argument, std::uintptr_t source, const Addresses& weights,
                                               const Addresses& starts, std::uintptr_t memory) const {
        switch (argument) {
            case Argument::source: return source;
            case Argument::input_weight: return weights[0];
            case Argument::recurrent_weight: return weights[1];
            case Argument::bias: return memory;
            case Argument::secondary_bias: return weights[3] + candidate_offset();
            case Argument::peephole: return weights[4];
            case Argument::init_state: return starts.at(0);
            case Argument::init_cell: return starts.at(1);
            default: throw std::invalid_argument("PyTorch's layers have no such argument");
        }
    }

    // Adds PyTorch's biases. Where the call has the candidate's second bias as an argument, the first one is copied.
    void add_biases(std::uintptr_t to, std::uintptr_t first, std::uintptr_t second) const {
        const Dtype dtype = plan_->spec.dtype;
        const std::uint64_t bytes = input_bytes(Argument::bias);
        const std::uint64_t added = input_bytes(Argument::secondary_bias) == 0 ? bytes : candidate_offset();
        add_cuda_biases(*device_, {to, first, second, static_cast<std::uint32_t>(bytes / storage_bytes(dtype)),
                                   static_cast<std::uint32_t>(added / storage_bytes(dtype)), dtype});
    }

    [[nodiscard]] std::uint64_t input_bytes(Argument argument) const {
        for (const auto& [each, index] : plan_->inputs)
            if (each == argument) return plan_->buffers[index].bytes;
        return 0;
    }
    // Returns where the candidate's part of a GRU's bias begins: it is the last of three gates.
    [[nodiscard]] std::uint64_t candidate_offset() const { return input_bytes(Argument::bias) / 3 * 2; }
    [[nodiscard]] std::uint64_t result_bytes(std::size_t i) const {
        return plan_->buffers.at(plan_->results.at(i)).bytes;
    }
    [[nodiscard]] std::uint64_t steps() const { return static_cast<std::uint64_t>(call_.results.at(0).shape.at(0)); }
    [[nodiscard]] std::uint64_t bias_bytes() const { return aligned(input_bytes(Argument::bias)); }
    [[nodiscard]] std::uint64_t cells_bytes() const {
        return plan_->results.size() > 1 && steps() > 1 ? aligned(result_bytes(1)) : 0;
    }
    [[nodiscard]] static std::uint64_t aligned(std::uint64_t bytes) {
        return (bytes + kCudaAlignment - 1) / kCudaAlignment * kCudaAlignment;
    }

    [[nodiscard]] std::shared_ptr<Storage> borrowed(std::uintptr_t address, std::size_t buffer) const {
        return borrow_cuda_memory(*device_, address, plan_->buffers.at(buffer).bytes, {});
    }

    std::shared_ptr<Device> device_;
    std::string prefix_;
    std::vector<Argument> order_;
    Call call_;
    std::shared_ptr<const Plan> plan_;
};

}  // namespace

void register_cuda_calls(py::module_& module) {
    py::class_<CudaCall>(module, "CudaCall")
        .def(py::init<std::shared_ptr<Device>, const std::string&, bool, py::handle, const Given&, bool,
                      const std::optional<py::array>&>(),
             py::arg("device"), py::arg("cell_name"), py::arg("gradients"), py::arg("descriptor"), py::arg("arrays"),
             py::arg("tf32"), py::arg("lengths") = py::none(), py::call_guard<Inside>())
        .def_property_readonly("results",
                               [](const CudaCall& call) {
                                   py::tuple results(call.call().results.size());
                                   for (std::size_t i = 0; i < results.size(); ++i) {
                                       const ResultInfo& result = call.call().results[i];
                                       results[i] = py::make_tuple(result.name, py::tuple(py::cast(result.shape)));
                                   }
                                   return results;
                               })
        .def("run", &CudaCall::run, py::arg("addresses"), py::arg("results"), py::arg("stream"), py::arg("allocator"),
             py::arg("after") = Copies{}, py::arg("biases") = py::none(), py::call_guard<Inside>())
        .def_property_readonly("layer_bytes", &CudaCall::layer_bytes)
        .def("run_layer", &CudaCall::run_layer, py::arg("source"), py::arg("weights"), py::arg("starts"),
             py::arg("output"), py::arg("ends"), py::arg("stream"), py::arg("memory"), py::arg("count"),
             py::arg("allocator"), py::call_guard<Inside>());
}

}  // namespace vkrnn::python
