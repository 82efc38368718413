// CUDA devices: memory that is shared with other libraries, and their streams.
#include "vkrnn/cuda.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "dlpack.h"
#include "vkrnn/error.h"

namespace vkrnn::python {
namespace {

// Returns an array in memory that belongs to `keep`, which is kept as long as the device uses the memory.
Array borrow(py::object owner, std::shared_ptr<Device> device, std::uintptr_t address, const py::dtype& dtype,
             std::vector<py::ssize_t> shape, const py::object& keep) {
    Array array{std::move(owner), std::move(device), nullptr, 0, dtype, std::move(shape)};
    PyObject* const kept = py::object(keep).release().ptr();
    const auto release = [kept] {
        if (Py_IsInitialized() == 0) return;  // the process ends
        const py::gil_scoped_acquire gil;
        Py_DECREF(kept);
    };
    array.storage = borrow_cuda_memory(*array.device, address, array.nbytes(), release);
    return array;
}

constexpr const char* kDlName = "dltensor";

// What another library keeps of an array.
struct Lent {
    DlManagedTensor managed{};
    std::shared_ptr<Device> device;  // opened longer than the storage needs it
    std::shared_ptr<Storage> storage;
    std::vector<std::int64_t> shape;
};

// Returns a capsule that shares the array's memory with another library, whose `stream` waits for the array.
py::capsule to_dlpack(const Array& array, std::uintptr_t stream) {
    auto lent = std::make_unique<Lent>();
    lent->device = array.device;
    lent->storage = array.storage;
    lent->shape.assign(array.shape.begin(), array.shape.end());
    std::uint64_t address = 0;
    {
        const Unlocked unlocked;
        address = lend_cuda_memory(*array.device, *array.storage, stream) + array.offset;
    }
    const bool bfloat16 = dtype_name(array.dtype) == "bfloat16";
    lent->managed.tensor = {address,
                            kDlCuda,
                            cuda_ordinal(*array.device),
                            static_cast<std::int32_t>(lent->shape.size()),
                            bfloat16 ? kDlBfloat : kDlFloat,
                            static_cast<std::uint8_t>(8 * array.dtype.itemsize()),
                            1,
                            lent->shape.data(),
                            nullptr,
                            0};
    lent->managed.context = lent.get();
    lent->managed.deleter = [](DlManagedTensor* managed) { delete static_cast<Lent*>(managed->context); };
    py::capsule capsule(&lent.release()->managed, kDlName, [](PyObject* object) {
        if (PyCapsule_IsValid(object, kDlName) == 0) return;  // another library has taken it
        auto* const managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(object, kDlName));
        managed->deleter(managed);
    });
    return capsule;
}

}  // namespace

void register_cuda(py::module_& module) {
    module.def("set_cuda_packages", &set_cuda_packages, py::arg("folders"));
    module.def("borrow", &borrow, py::arg("owner"), py::arg("device"), py::arg("address"), py::arg("dtype"),
               py::arg("shape"), py::arg("keep"));
    module.def(
        "lend",
        [](const Array& array, std::uintptr_t stream) {
            const Unlocked unlocked;
            return lend_cuda_memory(*array.device, *array.storage, stream) + array.offset;
        },
        py::arg("array"), py::arg("stream"));
    module.def("to_dlpack", &to_dlpack, py::arg("array"), py::arg("stream"));
    module.def(
        "follow_cuda_stream",
        [](Device& device, std::uintptr_t stream) {
            const Unlocked unlocked;
            follow_cuda_stream(device, stream);
        },
        py::arg("device"), py::arg("stream"));
    module.def("cuda_compiler_key", &cuda_compiler_key, py::arg("device"));
    module.def("cuda_ordinal_at", &cuda_ordinal_at, py::arg("address"));
    module.def("cuda_ordinal", &cuda_ordinal, py::arg("device"));
}

}  // namespace vkrnn::python
