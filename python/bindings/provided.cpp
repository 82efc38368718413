// Objects that the Python package registers with the extension, so that the extension imports nothing from the package.
#include <map>
#include <stdexcept>

#include "bindings.h"

namespace vkrnn::python {
namespace {

// Protected by the GIL. Never released, because calls may outlive the interpreter.
std::map<std::string, py::handle>& objects() {
    static auto& all = *new std::map<std::string, py::handle>;
    return all;
}

}  // namespace

py::handle provided(const std::string& name) {
    const auto found = objects().find(name);
    if (found == objects().end()) throw std::logic_error("the package has not provided '" + name + "'");
    return found->second;
}

void register_provided(py::module_& module) {
    module.def(
        "provide", [](const std::string& name, py::object value) { objects()[name] = value.release(); },
        py::arg("name"), py::arg("value"));
}

}  // namespace vkrnn::python
