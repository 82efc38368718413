// The extension module vkrnn._core. Users never import it: names, docstrings and types live in the package around it.
#include "bindings.h"
#include "vkrnn/environment.h"

PYBIND11_MODULE(_core, module) {
    using namespace vkrnn::python;
    module.doc() = "The C++ core of vkrnn.";
    module.attr("__version__") = VKRNN_VERSION;
    // os.environ takes a microsecond.
    module.def("environment_variable", &vkrnn::environment_variable, py::arg("name"));
    register_errors(module);
    register_threads(module);
    register_provided(module);
    register_cells(module);
    register_plans(module);
    register_devices(module);
    register_arrays(module);
    register_calls(module);
    register_cuda(module);
    register_tensor_calls(module);
    register_steps(module);
    register_layers(module);
    register_network(module);
    register_streams(module);
    register_xla(module);
    register_tuned_calls(module);
    secure_classes(module);
}
