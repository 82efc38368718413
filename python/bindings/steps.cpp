// Single steps of PyTorch's cells without gradients: all that a repeated call needs, in one function.
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "bindings.h"
#include "host_call.h"
#include "vkrnn/error.h"
#include "vkrnn/fingerprint.h"
#include "vkrnn/prepared.h"

namespace vkrnn::python {
namespace {

constexpr std::size_t kMostTensors = 12;

// A step's arguments that are like those of an earlier step.
class StepCall {
public:
    // `run` returns h, and c if there is a cell state. `check` says whether tensors are like the earlier ones: source,
    // states, then parameters. `order` has the numbers of the parameters that are operands. `states` is the number of
    // states. `pack` is None, or makes the layer for PreparedLayers from the weights; steps of a single row whose
    // weights did not change since the last step then use packed weights.
    StepCall(const TensorRun& run, py::object check, std::vector<std::size_t> order, std::size_t states, bool is_lstm,
             py::object pack, std::vector<std::uint64_t> bytes)
        : run_(run),
          check_(std::move(check)),
          order_(std::move(order)),
          states_(states),
          is_lstm_(is_lstm),
          pack_(std::move(pack)),
          bytes_(std::move(bytes)) {}

    // Returns the new states, or None if the arguments are others. `parameters` are the module's, with None for absent
    // ones.
    py::object run(py::handle source, py::handle hx, const py::dict& parameters) {
        std::array<PyObject*, kMostTensors> given{source.ptr()};
        std::size_t count = 1;
        if (hx.is_none() != (states_ == 0)) return py::none();
        if (is_lstm_ && states_ > 0) {
            if (PyTuple_CheckExact(hx.ptr()) == 0 || PyTuple_GET_SIZE(hx.ptr()) != 2) return py::none();
            for (py::ssize_t i = 0; i < 2; ++i) given[count++] = PyTuple_GET_ITEM(hx.ptr(), i);
        } else if (states_ > 0) {
            given[count++] = hx.ptr();
        }
        PyObject *key = nullptr, *value = nullptr;
        for (py::ssize_t at = 0; PyDict_Next(parameters.ptr(), &at, &key, &value) != 0;) {
            if (value == Py_None) continue;
            if (count == kMostTensors) return py::none();
            given[count++] = value;
        }
        if (count != 1 + states_ + bytes_.size() || !run_.call().usable()) return py::none();
        const Held held(std::span(given.data() + 1 + states_, bytes_.size()));
        const auto same =
            py::reinterpret_steal<py::object>(PyObject_Vectorcall(check_.ptr(), given.data(), count, nullptr));
        if (!same) throw py::error_already_set();
        if (same.ptr() != Py_True) return py::none();

        Addresses operands;
        operands.reserve(count);
        const std::span all(given.data() + 1 + states_, bytes_.size());
        bool fits = run_.add(operands, given[0]);
        for (const std::size_t number : order_) fits = fits && run_.add(operands, all[number]);
        for (std::size_t i = 0; i < states_; ++i) fits = fits && run_.add(operands, given[1 + i]);
        if (!fits) return py::none();
        if (!pack_.is_none()) {
            if (py::object found = run_packed(operands)) return found;
            if (!pack_.is_none()) take_weights(operands, all);
        }
        const py::tuple found = run_.run_at(operands);
        if (is_lstm_) return found;
        return found[0];
    }

private:
    // Keeps tensors alive that other threads may take out of the module during the call.
    struct Held {
        explicit Held(std::span<PyObject* const> all) : tensors(all) {
            for (PyObject* const tensor : tensors) Py_INCREF(tensor);
        }
        ~Held() {
            for (PyObject* const tensor : tensors) Py_DECREF(tensor);
        }
        Held(const Held&) = delete;
        Held& operator=(const Held&) = delete;
        const std::span<PyObject* const> tensors;
    };

    // Returns whether the weights are where they were, and have the same bytes.
    [[nodiscard]] bool have_weights(const Addresses& operands) const {
        return fingerprint_ && std::equal(places_.begin(), places_.end(), operands.begin() + 1) &&
               fingerprint_->unchanged(0, 1);
    }

    // Returns the results, or nothing if there are no packed weights or they are out of date.
    [[nodiscard]] py::object run_packed(const Addresses& operands) {
        if (!layers_ || !std::equal(places_.begin(), places_.end(), operands.begin() + 1)) return {};
        const Spec& spec = layers_->spec(0);
        const std::array<std::int64_t, 2> shape{1, spec.H};
        const auto pointer = [&](std::size_t number) { return reinterpret_cast<const void*>(operands[number]); };
        const std::size_t first = 1 + order_.size();
        LayersCall call{.T = 1, .N = 1, .source = pointer(0), .hidden = pointer(first)};
        auto [h, at] = run_.tensors().make(run_.call().device(), spec.dtype, shape);
        call.output = at;
        last_hidden_.resize(static_cast<std::size_t>(spec.H) * storage_bytes(spec.dtype));
        call.last_hidden = last_hidden_.data();
        py::object c;
        if (is_lstm_) {
            call.cell = pointer(first + 1);
            auto [made, cell_at] = run_.tensors().make(run_.call().device(), spec.dtype, shape);
            c = std::move(made);
            call.last_cell = cell_at;
        }
        if (!layers_->run_step(call)) {  // there is no such step
            layers_ = nullptr;
            pack_ = py::none();
            return {};
        }
        if (!fingerprint_->unchanged(0, 1)) return {};
        return is_lstm_ ? py::make_tuple(std::move(h), std::move(c)) : h;
    }

    // Packs the weights if they are those of the last step, and remembers them if not.
    void take_weights(const Addresses& operands, std::span<PyObject* const> parameters) {
        if (layers_ || !have_weights(operands)) {
            layers_ = nullptr;
            places_.assign(operands.begin() + 1, operands.begin() + 1 + static_cast<std::ptrdiff_t>(order_.size()));
            std::vector<std::span<const std::byte>> spans;
            for (std::size_t i = 0; i < order_.size(); ++i)
                spans.emplace_back(reinterpret_cast<const std::byte*>(places_[i]), bytes_[order_[i]]);
            fingerprint_.emplace(spans);
            ++fingerprints_;
            return;
        }
        const std::uint64_t fingerprints = fingerprints_;
        py::list weights;
        for (const std::size_t number : order_) weights.append(py::reinterpret_borrow<py::object>(parameters[number]));
        const auto given = pack_(weights).cast<std::vector<PythonLayer>>();
        std::vector<py::array> kept;
        const std::vector<NetworkLayer> made = read_layers(given, kept, "[layers] ");
        auto layers = std::make_shared<PreparedLayers>(run_.call().device(), made);
        // Other threads may have written or made a call meanwhile.
        if (fingerprints == fingerprints_ && have_weights(operands)) layers_ = std::move(layers);
    }

    TensorRun run_;
    py::object check_;
    std::vector<std::size_t> order_;
    std::size_t states_;
    bool is_lstm_;
    py::object pack_;
    std::vector<std::uint64_t> bytes_;  // of the parameters
    std::vector<std::uintptr_t> places_;
    std::optional<Fingerprint> fingerprint_;
    std::uint64_t fingerprints_ = 0;  // that were made
    std::shared_ptr<PreparedLayers> layers_;
    std::vector<std::byte> last_hidden_;
};

}  // namespace

void register_steps(py::module_& module) {
    py::class_<TensorRun>(module, "TensorRun")
        .def(py::init<std::shared_ptr<HostCall>, py::capsule, TensorRun::Wanted, py::object>(), py::arg("call"),
             py::arg("interface"), py::arg("wanted"), py::arg("openmp"))
        .def("run", &TensorRun::run, py::arg("operands"), py::call_guard<Inside>());
    py::class_<StepCall>(module, "StepCall")
        .def(py::init<const TensorRun&, py::object, std::vector<std::size_t>, std::size_t, bool, py::object,
                      std::vector<std::uint64_t>>(),
             py::arg("run"), py::kw_only(), py::arg("check"), py::arg("order"), py::arg("states"), py::arg("is_lstm"),
             py::arg("pack"), py::arg("sizes"))
        .def("run", &StepCall::run, py::arg("source"), py::arg("hx"), py::arg("parameters"), py::call_guard<Inside>());
}

}  // namespace vkrnn::python
