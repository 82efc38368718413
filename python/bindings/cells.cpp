// The table of cells, read-only, and the conversion of descriptors by it.
#include "vkrnn/cells.h"

#include <cmath>
#include <map>
#include <vector>

#include "bindings.h"
#include "vkrnn/error.h"

namespace vkrnn::python {
namespace {

// Returns "an LSTMDescriptor", "a GRUDescriptor", "an int". If the word begins with an acronym, the article follows
// from the name of its first letter.
std::string with_article(const std::string& word) {
    const auto upper = [&](std::size_t i) { return i < word.size() && word[i] >= 'A' && word[i] <= 'Z'; };
    const std::string_view vowels = upper(0) && upper(1) ? "AEFHILMNORSX" : "AEIOUaeiou";
    const bool an = !word.empty() && vowels.find(word[0]) != std::string_view::npos;
    return (an ? "an " : "a ") + word;
}

py::list parameters(const std::vector<Parameter>& all) {
    py::list list;
    for (const Parameter& parameter : all)
        list.append(py::make_tuple(to_python(name_of(parameter.argument)), parameter.optional));
    return list;
}

py::list outputs(const Cell& cell) {
    py::list list;
    list.append(to_python(name_of(Output::output)));
    for (std::size_t s = 1; s <= cell.cell_states; ++s) list.append(to_python(name_of(kStateTensors.at(s).sequence)));
    list.append(to_python(name_of(Output::z_state)));
    return list;
}

py::list gradient_order(const Cell& cell) {
    py::list list;
    for (const Argument argument : cell.gradient_order) list.append(to_python(name_of(argument)));
    return list;
}

// The Python class of a cell's descriptor. It is never released, because calls may outlive the interpreter.
struct DescriptorClass {
    py::handle type;
    std::vector<py::handle> names;  // names of the properties, interned for faster attribute look-up
};

// Protected by the GIL.
DescriptorClass& descriptor_class(CellKind kind) {
    static auto& classes = *new std::map<CellKind, DescriptorClass>;
    return classes[kind];
}

// Returns whether the object is a descriptor of the cell. If it is not of the known class, looks the class up again:
// the package may have been reloaded and have registered another.
bool is_descriptor(const Cell& cell, py::handle object) {
    py::handle& type = descriptor_class(cell.kind).type;
    if (type && py::isinstance(object, type)) return true;
    type = provided(std::string(cell.descriptor_name));
    return py::isinstance(object, type);
}

const std::vector<py::handle>& property_names(const Cell& cell) {
    std::vector<py::handle>& names = descriptor_class(cell.kind).names;
    while (names.size() < cell.properties.size()) {
        PyObject* const name = PyUnicode_InternFromString(std::string(cell.properties[names.size()].name).c_str());
        if (name == nullptr) throw py::error_already_set();
        names.emplace_back(name);
    }
    return names;
}

py::dict properties(const Cell& cell) {
    py::dict dict;
    for (const Property& property : cell.properties) {
        const py::str name = to_python(property.name);
        if (const auto* activation = std::get_if<ActivationProperty>(&property.kind)) {
            dict[name] = to_python(name_of(activation->documented_default));
        } else if (const auto* number = std::get_if<NumberProperty>(&property.kind)) {
            dict[name] = std::isfinite(number->documented_default) ? py::object(py::float_(number->documented_default))
                                                                   : py::none();
        } else if (std::holds_alternative<CountProperty>(property.kind)) {
            dict[name] = 1;
        } else if (const auto* choice = std::get_if<ChoiceProperty>(&property.kind)) {
            dict[name] = to_python(choice->words[0]);
        } else {
            dict[name] = false;
        }
    }
    return dict;
}

}  // namespace

std::string type_name(py::handle object) {
    return object.is_none() ? "None" : py::str(py::type::handle_of(object).attr("__name__")).cast<std::string>();
}

py::str to_python(std::string_view text) {
    PyObject* const made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(made);
}

Descriptor read_descriptor(const Cell& cell, py::handle object, const std::string& prefix) {
    Descriptor descriptor = default_descriptor(cell.kind);
    if (object.is_none()) return descriptor;

    if (!is_descriptor(cell, object)) {
        throw TypeError(prefix + " descriptor: expected " + with_article(std::string(cell.descriptor_name)) + ", got " +
                        with_article(type_name(object)));
    }
    const std::vector<py::handle>& names = property_names(cell);
    for (std::size_t i = 0; i < names.size(); ++i) {
        const Property& property = cell.properties[i];
        const auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), names[i].ptr()));
        if (!value) throw py::error_already_set();
        if (const auto* activation = std::get_if<ActivationProperty>(&property.kind)) {
            const auto chosen = static_cast<Activation>(py::int_(value).cast<std::uint8_t>());
            if (name_of(chosen).empty()) {
                throw ValueError(prefix + " descriptor." + std::string(property.name) +
                                 ": expected an Activation, got " + py::repr(value).cast<std::string>());
            }
            descriptor.activations.at(activation->slot) = chosen;
        } else if (const auto* number = std::get_if<NumberProperty>(&property.kind)) {
            descriptor.numbers.at(number->slot) = value.is_none() ? number->documented_default : value.cast<double>();
        } else if (const auto* count = std::get_if<CountProperty>(&property.kind)) {
            descriptor.counts.at(count->slot) = value.cast<std::int64_t>();
        } else if (const auto* choice = std::get_if<ChoiceProperty>(&property.kind)) {
            descriptor.set(choice->flag, value.cast<std::string>() == choice->words[1]);
        } else {
            descriptor.set(std::get<Flag>(property.kind), value.cast<bool>());
        }
    }
    return descriptor;
}

void register_cells(py::module_& module) {
    py::class_<Cell>(module, "Cell")
        .def_property_readonly("name", [](const Cell& cell) { return to_python(cell.name); })
        .def_property_readonly("gradients_name", [](const Cell& cell) { return to_python(cell.gradients_name); })
        .def_property_readonly("descriptor_name", [](const Cell& cell) { return to_python(cell.descriptor_name); })
        .def_property_readonly("gates", [](const Cell& cell) { return py::list(py::cast(cell.gates)); })
        .def_property_readonly("forward", [](const Cell& cell) { return parameters(cell.forward); })
        .def_property_readonly("gradients", [](const Cell& cell) { return parameters(cell.gradients); })
        .def_property_readonly("outputs", &outputs)
        .def_property_readonly("gradient_order", &gradient_order)
        .def_property_readonly("properties", &properties)
        .def("__repr__", [](const Cell& cell) { return "<vkrnn._core.Cell " + std::string(cell.name) + ">"; });

    py::list states;
    for (const StateTensors& state : kStateTensors)
        states.append(py::make_tuple(to_python(name_of(state.initial)), to_python(name_of(state.gradient)),
                                     to_python(name_of(state.forward)), to_python(name_of(state.sequence)),
                                     to_python(name_of(state.last))));
    module.attr("state_tensors") = py::tuple(states);
    module.def("cells", [] {
        py::list list;
        for (const Cell& cell : cells()) list.append(py::cast(&cell, py::return_value_policy::reference));
        return list;
    });
}

}  // namespace vkrnn::python
