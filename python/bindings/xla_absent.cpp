// What xla.cpp has, in a build without XLA's headers.
#include <stdexcept>

#include "bindings.h"

namespace vkrnn::python {

void register_xla(py::module_& module) {
    module.def("xla_handler", [] { return py::none(); });
    module.def("xla_cuda_handler", [] { return py::none(); });
    module.def(
        "xla_device",
        [](const std::shared_ptr<Device>&) -> std::int64_t { throw std::logic_error("built without XLA's headers"); },
        py::arg("device"));
}

}  // namespace vkrnn::python
