#include "host_call.h"

#include <array>
#include <new>

#include "dlpack.h"
#include "vkrnn/error.h"

namespace vkrnn::python {
namespace {

constexpr std::size_t kTensorAlignment = 64;
constexpr std::size_t kMostAxes = 4;
constexpr const char* kInterfaceName = "dlpack_exchange_api";

// What PyTorch keeps of a tensor that was made here. The elements follow it, or are in the storage.
struct alignas(kTensorAlignment) Made {
    DlVersionedTensor managed{};
    std::array<std::int64_t, kMostAxes> shape{}, strides{};
    std::shared_ptr<Device> device;  // opened longer than the storage needs it
    std::shared_ptr<Storage> storage;

    static void destroy(DlVersionedTensor* managed) {
        auto* const made = static_cast<Made*>(managed->context);
        made->~Made();
        ::operator delete (made, std::align_val_t{kTensorAlignment});
    }
};

const DlInterface& functions_of(const py::capsule& interface) { return *interface.get_pointer<const DlInterface>(); }

// Calls of this thread run on OpenMP's threads while the object lives.
struct OnThreads {
    explicit OnThreads(const OpenMP* openmp) : is_on(openmp != nullptr) {
        if (is_on) openmp->enter();
    }
    ~OnThreads() {
        if (is_on) OpenMP::leave();
    }
    OnThreads(const OnThreads&) = delete;
    OnThreads& operator=(const OnThreads&) = delete;
    const bool is_on;
};

constexpr std::uint8_t code_of(Dtype dtype) { return dtype == Dtype::bfloat16 ? kDlBfloat : kDlFloat; }
constexpr std::uint8_t bits_of(Dtype dtype) { return static_cast<std::uint8_t>(8 * storage_bytes(dtype)); }

std::uint64_t bytes_of(std::span<const std::int64_t> shape, Dtype dtype) {
    std::uint64_t bytes = storage_bytes(dtype);
    for (const std::int64_t axis : shape) bytes *= static_cast<std::uint64_t>(axis);
    return bytes;
}

}  // namespace

HostTensors::HostTensors(py::capsule interface) : interface_(std::move(interface)) {
    const DlVersion version =
        PyCapsule_IsValid(interface_.ptr(), kInterfaceName) != 0 ? functions_of(interface_).version : DlVersion{0, 0};
    if (version.major != 1) throw ValueError("[tensors] expected DLPack's exchange interface of version 1");
}

std::uintptr_t HostTensors::address(PyObject* tensor, Dtype dtype, std::uint64_t bytes) const {
    DlTensor view{};
    if (functions_of(interface_).view(tensor, &view) != 0) throw py::error_already_set();
    if (view.device_type != kDlCpu || view.type_code != code_of(dtype) || view.type_bits != bits_of(dtype)) return 0;
    std::int64_t elements = 1;
    for (std::int32_t axis = view.axes; axis-- > 0; elements *= view.shape[axis])
        if (view.shape[axis] != 1 && view.strides[axis] != elements) return 0;
    return static_cast<std::uint64_t>(elements) * storage_bytes(dtype) == bytes ? view.data + view.byte_offset : 0;
}

std::pair<py::object, std::byte*> HostTensors::make(const std::shared_ptr<Device>& device, Dtype dtype,
                                                    std::span<const std::int64_t> shape) const {
    const std::uint64_t bytes = bytes_of(shape, dtype);
    std::shared_ptr<Storage> storage = device->allocate_for_host(bytes);
    auto* const memory = static_cast<std::byte*>(
        ::operator new (sizeof(Made) + (storage ? 0 : bytes), std::align_val_t{kTensorAlignment}));
    Made* const made = new (memory) Made;
    std::byte* const at = storage ? storage->host() : memory + sizeof(Made);
    if (storage) made->device = device;
    made->storage = std::move(storage);
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) {
        made->shape.at(axis) = shape[axis];
        made->strides.at(axis) = stride;
    }
    made->managed = {{1, 0}, made, &Made::destroy, 0, {}};
    made->managed.tensor = {reinterpret_cast<std::uintptr_t>(at),
                            kDlCpu,
                            0,
                            static_cast<std::int32_t>(shape.size()),
                            code_of(dtype),
                            bits_of(dtype),
                            1,
                            made->shape.data(),
                            made->strides.data(),
                            0};
    void* object = nullptr;
    if (functions_of(interface_).import_tensor(&made->managed, &object) != 0) {
        Made::destroy(&made->managed);
        throw py::error_already_set();
    }
    return {py::reinterpret_steal<py::object>(static_cast<PyObject*>(object)), at};
}

TensorRun::TensorRun(std::shared_ptr<HostCall> call, py::capsule interface, Wanted wanted, py::object openmp)
    : call_(std::move(call)),
      tensors_(std::move(interface)),
      wanted_(std::move(wanted)),
      openmp_object_(std::move(openmp)),
      openmp_(openmp_object_.is_none() ? nullptr : openmp_object_.cast<const OpenMP*>()) {
    for (const HostCall::Result& result : call_->results()) hidden_.push_back(bytes_of(result.shape, call_->dtype()));
    for (const auto& [number, drops_axis] : wanted_) {
        shapes_.emplace_back();
        if (number < 0) continue;
        const TensorShape& shape = call_->results().at(static_cast<std::size_t>(number)).shape;
        if (shape.size() > kMostAxes) throw ValueError("[tensors] expected results with four axes at most");
        shapes_.back().assign(shape.begin() + (drops_axis ? 1 : 0), shape.end());
        hidden_[static_cast<std::size_t>(number)] = 0;
    }
}

bool TensorRun::add(Addresses& operands, PyObject* tensor) const {
    const std::vector<std::uint64_t>& bytes = call_->operand_bytes();
    if (operands.size() == bytes.size()) return false;
    operands.push_back(tensors_.address(tensor, call_->dtype(), bytes[operands.size()]));
    return operands.back() != 0;
}

py::object TensorRun::run(const py::list& operands) const {
    Addresses at;
    at.reserve(operands.size());
    for (const py::handle operand : operands)
        if (!add(at, operand.ptr())) return py::none();
    if (at.size() != call_->operand_bytes().size()) return py::none();
    return run_at(at);
}

py::tuple TensorRun::run_at(const Addresses& operands) const {
    py::tuple found(wanted_.size());
    std::vector<std::byte*> at(hidden_.size(), nullptr);
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
        if (wanted_[i].first < 0) {
            found[i] = py::none();
            continue;
        }
        auto [tensor, address] = tensors_.make(call_->device(), call_->dtype(), shapes_[i]);
        at[static_cast<std::size_t>(wanted_[i].first)] = address;
        found[i] = std::move(tensor);
    }
    std::vector<std::unique_ptr<std::byte[]>> others;  // NOLINT(*-avoid-c-arrays)
    for (std::size_t i = 0; i < at.size(); ++i)
        if (at[i] == nullptr)
            at[i] =
                others.emplace_back(std::make_unique_for_overwrite<std::byte[]>(hidden_[i] + kTensorAlignment)).get();
    const OnThreads on_threads(openmp_);
    call_->run_at(operands, at);
    return found;
}

}  // namespace vkrnn::python
