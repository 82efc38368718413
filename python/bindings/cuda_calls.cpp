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

namespace vkrnn::python {
namespace {

using Addresses = std::vector<std::uintptr_t>;
using Given = std::vector<std::tuple<std::string, std::string, TensorShape>>;           // names, dtypes and shapes
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
        const Spec spec = spec_on(call_.spec, device_->profile(), tf32);
        const Unlocked unlocked;
        plan_ = device_->plan(spec);
    }

    [[nodiscard]] const Call& call() const { return call_; }

    // Runs on a stream. The arrays are at `addresses`, in the order of the arguments; lengths are 32-bit integers
    // there. The results go to `results`. `allocator` is a function like CudaAllocator, or None. The copies within the
    // device's memory are made before and after the call. The caller keeps all memory until the call returns, and
    // orders later uses on the stream.
    void run(const Addresses& addresses, const Addresses& results, std::uintptr_t stream, py::handle allocator,
             const Copies& before, const Copies& after) const {
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
        copy_cuda_memory(*device_, copies_of(before));
        device_->run(plan_, from, to, false, prefix_, &interrupted);
        copy_cuda_memory(*device_, copies_of(after));
    }

private:
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
             py::arg("before") = Copies{}, py::arg("after") = Copies{}, py::call_guard<Inside>());
}

}  // namespace vkrnn::python
