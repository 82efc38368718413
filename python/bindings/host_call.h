// Calls on tensors of PyTorch in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "vkrnn/openmp.h"

namespace vkrnn::python {

using Addresses = std::vector<std::uintptr_t>;

// A planned call that can run many times.
class HostCall {
public:
    struct Result {
        std::string name;
        std::int64_t layer;
        TensorShape shape;
    };

    virtual ~HostCall() = default;
    [[nodiscard]] virtual const std::vector<Result>& results() const = 0;
    [[nodiscard]] virtual bool usable() const = 0;
    [[nodiscard]] virtual Dtype dtype() const = 0;
    [[nodiscard]] virtual const std::shared_ptr<Device>& device() const = 0;

    // Returns the bytes of each operand.
    [[nodiscard]] virtual const std::vector<std::uint64_t>& operand_bytes() const = 0;

    // Runs on operands in host memory. `results` says where each result goes.
    virtual void run_at(const Addresses& operands, const std::vector<std::byte*>& results) const = 0;
};

// Reads and makes tensors in host memory by the functions of DLPack's exchange interface, which take half the time of
// PyTorch's Python functions.
class HostTensors {
public:
    // `interface` is torch.Tensor.__dlpack_c_exchange_api__. Throws ValueError if it is another version's.
    explicit HostTensors(py::capsule interface);

    // Returns where a tensor's elements are, or 0 if it is not a contiguous one in host memory of this type and size.
    [[nodiscard]] std::uintptr_t address(PyObject* tensor, Dtype dtype, std::uint64_t bytes) const;

    // Returns a new contiguous tensor whose elements are not set, and where these are.
    [[nodiscard]] std::pair<py::object, std::byte*> make(const std::shared_ptr<Device>& device, Dtype dtype,
                                                         std::span<const std::int64_t> shape) const;

private:
    py::capsule interface_;
};

// A call whose operands and results are tensors. `wanted` has the results to return: their numbers, and whether to
// leave out the first axis. A negative number stands for None.
class TensorRun {
public:
    using Wanted = std::vector<std::pair<std::int64_t, bool>>;
    // `openmp` is the OpenMP on whose threads calls run, or None.
    TensorRun(std::shared_ptr<HostCall> call, py::capsule interface, Wanted wanted, py::object openmp);

    // Returns the results, or None if the operands do not have the type and sizes of those that were planned.
    [[nodiscard]] py::object run(const py::list& operands) const;
    // Adds the operand's address to the others. Returns false if it does not have the type or size of that number.
    [[nodiscard]] bool add(Addresses& operands, PyObject* tensor) const;
    [[nodiscard]] py::tuple run_at(const Addresses& operands) const;
    [[nodiscard]] const HostCall& call() const { return *call_; }
    [[nodiscard]] const HostTensors& tensors() const { return tensors_; }

private:
    std::shared_ptr<HostCall> call_;
    HostTensors tensors_;
    Wanted wanted_;
    py::object openmp_object_;
    const OpenMP* openmp_;
    std::vector<std::uint64_t> hidden_;  // by result: the bytes of one that is not returned, else 0
    std::vector<TensorShape> shapes_;    // of those that are wanted
};

}  // namespace vkrnn::python
