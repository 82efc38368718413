// Calls on tensors of another library, by addresses: a function, or a whole module in PyTorch's layout.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "host_call.h"
#include "vkrnn/cuda.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"
#include "vkrnn/network.h"
#include "vkrnn/run.h"

namespace vkrnn::python {
namespace {

// An operand's name, its layer, dtype and shape. Layer kAllLayers: the operand has equal parts for all layers, one
// after the other along its first axis.
using GivenOperand = std::tuple<std::string, std::int64_t, std::string, TensorShape>;
constexpr std::int64_t kAllLayers = -1;
constexpr std::string_view kBetween = "between";

// Where a tensor of the plan is: in an operand or a result, which has an address in each call.
struct Part {
    std::size_t number = 0;
    std::uint64_t offset = 0;  // in bytes; in tensors like this one until the plan is made
};

// Returns whether this is the tensor of any state.
template <class What>
bool is_one_of(What StateTensors::*tensor, What what) {
    return std::ranges::find(kStateTensors, what, tensor) != kStateTensors.end();
}

// A checked call and its plan, which can run many times.
class TensorCall : public HostCall {
public:
    // A call of one layer or of several layers with the same options, forward or, if `gradients`, back. `trained` is
    // the first layer with training states. `operands` has all but the lengths, which come last; their numbers are
    // checked. Throws what check_call() throws.
    TensorCall(std::shared_ptr<Device> device, const std::string& cell_name, py::handle descriptor, std::size_t layers,
               bool gradients, std::size_t trained, const std::vector<GivenOperand>& operands,
               const std::optional<py::array>& lengths, bool packed, bool torch_layout, bool tf32)
        : device_(std::move(device)), layers_(layers), gradients_(gradients), torch_layout_(torch_layout) {
        const Cell& cell = require_cell(cell_name);
        label_ = message_prefix(cell, gradients, {});
        NetworkArguments arguments{std::vector<Arguments>(layers), {}, trained, {packed, torch_layout}};
        NetworkUpstream upstream{{}, std::vector<Arguments>(layers)};
        for (const GivenOperand& operand : operands) {
            add(operand, arguments, upstream);
            operand_bytes_.push_back(1);
            for (const std::int64_t axis : std::get<TensorShape>(operand))
                operand_bytes_.back() *= static_cast<std::uint64_t>(axis);
        }
        if (lengths) {
            TensorInfo info = info_of(*lengths, Argument::lengths);
            inputs_[{0, Argument::lengths}] = {operands.size(), 0};
            arguments.layers[0][Argument::lengths] = upstream.layers[0][Argument::lengths] = std::move(info);
        }
        const Descriptor options = read_descriptor(cell, descriptor, label_);
        const Unlocked unlocked;
        if (layers == 1)
            plan_one(options, arguments, upstream, tf32);
        else
            plan_all(std::vector(layers, options), arguments, upstream, tf32);
        for (std::size_t i = 0; i < made_.inputs.size(); ++i) {
            const auto& [number, before] = inputs_.at(made_.inputs[i]);
            read_.push_back({number, before * plan().buffers.at(plan().inputs[i].second).bytes});
        }
        for (std::size_t i = 0; i < made_.results.size(); ++i) add_result(i);
        for (std::uint64_t& each : operand_bytes_) each *= storage_bytes(dtype());
    }

    [[nodiscard]] const std::vector<Result>& results() const override { return results_; }
    [[nodiscard]] bool usable() const override { return !device_->closed() && !device_->lost(); }
    [[nodiscard]] Dtype dtype() const override { return specs_.front().dtype; }
    [[nodiscard]] const std::shared_ptr<Device>& device() const override { return device_; }
    [[nodiscard]] const std::vector<std::uint64_t>& operand_bytes() const override { return operand_bytes_; }
    // Returns the bytes of memory that the latest call on a CUDA device took for itself.
    [[nodiscard]] std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

    // Throws ValueError if other lengths than those that the call was made with do not fit it.
    void check_lengths(const py::array& lengths) const {
        vkrnn::check_lengths(specs_.front(), info_of(lengths, Argument::lengths).integers, label_);
    }

    // Runs on a CUDA stream. The operands are at `operands`, lengths as 32-bit integers. The results go to `results`.
    // `memory` are `bytes` bytes for the call itself; if it needs more, `allocator` is asked, a function like
    // CudaAllocator. The caller keeps all memory until the call returns, and orders later uses on the stream.
    void run(const Addresses& operands, const Addresses& results, std::uintptr_t stream, std::uintptr_t memory,
             std::uint64_t bytes, py::handle allocator) const {
        const OnCudaStream ordered(stream, [&, allocator](std::uint64_t count) -> std::uint64_t {
            bytes_.store(count, std::memory_order_relaxed);
            if (count <= bytes) return memory;
            const py::gil_scoped_acquire gil;
            return py::cast<std::uint64_t>(allocator(count));
        });
        std::vector<InputLocation> from;
        for (std::size_t i = 0; i < read_.size(); ++i)
            from.push_back(
                {nullptr, borrowed(operands.at(read_[i].number) + read_[i].offset, plan().inputs[i].second)});
        std::vector<ResultLocation> to;
        for (std::size_t i = 0; i < written_.size(); ++i)
            to.push_back({nullptr, borrowed(results.at(written_[i].number) + written_[i].offset, plan().results[i])});
        const EnvironmentCopy environment(kCallVariables);  // copied while the GIL keeps others from changing it
        const Unlocked unlocked;
        run_plan(*device_, made_.plan, from, to, false, label_, &interrupted);
    }

    // Runs on operands in host memory, and returns the results as arrays. `owner` is the vkrnn.Device of the device.
    // `dtype` has the size of the call's dtype.
    [[nodiscard]] py::list run_on_host(const Addresses& operands, const py::object& owner,
                                       const py::dtype& dtype) const {
        py::list arrays;
        std::vector<std::byte*> at;
        for (const Result& result : results_) {
            Array made{owner, device_, nullptr, 0, dtype, {result.shape.begin(), result.shape.end()}};
            const py::object array = allocate_for_host(std::move(made));
            const bool is_array = py::isinstance<Array>(array);
            arrays.append(is_array ? view(array.cast<const Array&>()) : array);
            at.push_back(static_cast<std::byte*>(py::array(arrays[arrays.size() - 1]).mutable_data()));
        }
        run_at(operands, at);
        return arrays;
    }

    void run_at(const Addresses& operands, const std::vector<std::byte*>& results) const override {
        std::vector<InputLocation> from;
        from.reserve(read_.size());
        for (const Part& part : read_)
            from.push_back({reinterpret_cast<const std::byte*>(operands.at(part.number)) + part.offset});
        std::vector<ResultLocation> to;
        to.reserve(written_.size());
        for (const Part& part : written_) to.push_back({results.at(part.number) + part.offset});
        if (plan().flops < kLongFlops && device_->profile().backend == Backend::native)
            return run_plan(*device_, made_.plan, from, to, true, label_, {});
        const EnvironmentCopy environment(kCallVariables);
        const Unlocked unlocked;
        run_plan(*device_, made_.plan, from, to, true, label_, &interrupted);
    }

private:
    [[nodiscard]] const Plan& plan() const { return *made_.plan; }

    void add(const GivenOperand& operand, NetworkArguments& arguments, NetworkUpstream& upstream) {
        const auto& [name, layer, dtype, shape] = operand;
        const std::size_t number = operands_++;
        TensorInfo info{dtype, shape, {}};
        if (name == kBetween) {
            const auto at = static_cast<std::size_t>(layer);
            arguments.between.resize(std::max(arguments.between.size(), at + 1));
            arguments.between[at] = std::move(info);
            inputs_[{at, Between{}}] = {number, 0};
            return;
        }
        const Argument argument = argument_named(name, label_);
        const bool is_stack = layer == kAllLayers;
        if (is_stack && (shape.empty() || shape[0] % static_cast<std::int64_t>(layers_) != 0))
            throw ValueError(label_ + " " + name + ": expected equal parts for " + std::to_string(layers_) +
                             " layers, got " + to_text(shape));
        if (is_stack) info.shape[0] /= static_cast<std::int64_t>(layers_);
        const std::size_t first = is_stack ? 0 : static_cast<std::size_t>(layer);
        for (std::size_t l = first; l < (is_stack ? layers_ : first + 1); ++l) {
            inputs_[tensor_of(argument, l)] = {number, is_stack ? l : 0};
            if (argument == Argument::source_gradient) {
                upstream.source_gradient = info;
            } else if (argument == Argument::z_state || is_one_of(&StateTensors::forward, argument)) {
                if (layers_ == 1) upstream.layers.at(l)[argument] = info;  // else its shape follows from the others
            } else {
                const bool is_upstream = is_one_of(&StateTensors::gradient, argument);
                (is_upstream ? upstream.layers : arguments.layers).at(l)[argument] = info;
            }
        }
    }

    void plan_one(Descriptor options, const NetworkArguments& arguments, const NetworkUpstream& upstream, bool tf32) {
        Arguments infos = arguments.layers[0];
        infos.insert(upstream.layers[0].begin(), upstream.layers[0].end());
        if (upstream.source_gradient) infos[Argument::source_gradient] = *upstream.source_gradient;
        if (torch_layout_) options.set(Flag::training, !gradients_ && arguments.trained == 0);
        Spec spec = check_call(options, gradients_, infos, {}, arguments.form).spec;
        spec.last_states = torch_layout_ && !gradients_;
        made_.plan = device_->plan_call(spec, tf32);
        for (const auto& [argument, buffer] : plan().inputs) made_.inputs.push_back(tensor_of(argument, 0));
        if (gradients_)
            for (const Argument argument : gradient_order_of(spec)) made_.results.push_back({0, argument});
        else
            for (const Output output : outputs_of(spec)) made_.results.push_back({0, output});
        specs_ = {spec};
    }

    void plan_all(const std::vector<Descriptor>& options, const NetworkArguments& arguments,
                  const NetworkUpstream& upstream, bool tf32) {
        NetworkSpec spec = check_network(options, arguments);
        if (gradients_) spec = check_network_gradients(spec, upstream);
        made_ = device_->plan_network(spec, tf32);
        specs_ = std::move(spec.layers);
    }

    // Adds the plan's result i, or makes it a part of a result that has all layers' states.
    void add_result(std::size_t i) {
        const NetworkTensor& tensor = made_.results[i];
        const auto* const argument = std::get_if<Argument>(&tensor.what);
        const std::string name(argument != nullptr ? name_of(*argument) : name_of(std::get<Output>(tensor.what)));
        const bool is_start = argument != nullptr &&
                              (*argument == Argument::reset_state || *argument == Argument::reset_cell) &&
                              !specs_.at(tensor.layer).has_largest(*argument);
        const bool is_state = argument != nullptr ? is_start || is_one_of(&StateTensors::initial, *argument)
                                                  : is_one_of(&StateTensors::last, std::get<Output>(tensor.what));
        const bool is_stack = torch_layout_ && is_state;
        const std::uint64_t bytes = plan().buffers.at(plan().results[i]).bytes;
        auto found = std::ranges::find(results_, name, &Result::name);
        if (!is_stack || found == results_.end()) {
            Result result{name, is_stack ? kAllLayers : static_cast<std::int64_t>(tensor.layer), shape_of(tensor)};
            if (is_stack) result.shape[0] *= static_cast<std::int64_t>(layers_);
            found = results_.insert(results_.end(), std::move(result));
        }
        written_.push_back({static_cast<std::size_t>(found - results_.begin()), is_stack ? tensor.layer * bytes : 0});
    }

    [[nodiscard]] TensorShape shape_of(const NetworkTensor& tensor) const {
        const Spec& spec = specs_.at(tensor.layer);
        const auto* const argument = std::get_if<Argument>(&tensor.what);
        return argument != nullptr ? vkrnn::shape_of(spec, *argument)
                                   : vkrnn::shape_of(spec, std::get<Output>(tensor.what));
    }

    [[nodiscard]] std::shared_ptr<Storage> borrowed(std::uintptr_t address, std::size_t buffer) const {
        return borrow_cuda_memory(*device_, address, plan().buffers.at(buffer).bytes, {});
    }

    std::shared_ptr<Device> device_;
    std::size_t layers_, operands_ = 0;
    bool gradients_, torch_layout_;
    std::string label_;
    std::map<NetworkTensor, Part> inputs_;
    std::vector<Spec> specs_;  // of the layers
    NetworkPlan made_;
    std::vector<Part> read_, written_;  // of the plan's inputs and results
    std::vector<Result> results_;
    std::vector<std::uint64_t> operand_bytes_;
    mutable std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace

void register_tensor_calls(py::module_& module) {
    py::class_<HostCall, std::shared_ptr<HostCall>>(module, "HostCall");
    py::class_<TensorCall, HostCall, std::shared_ptr<TensorCall>>(module, "TensorCall")
        .def(py::init<std::shared_ptr<Device>, const std::string&, py::handle, std::size_t, bool, std::size_t,
                      const std::vector<GivenOperand>&, const std::optional<py::array>&, bool, bool, bool>(),
             py::arg("device"), py::arg("cell_name"), py::arg("descriptor"), py::kw_only(), py::arg("layers"),
             py::arg("gradients"), py::arg("trained"), py::arg("operands"), py::arg("lengths"), py::arg("packed"),
             py::arg("torch_layout"), py::arg("tf32"), py::call_guard<Inside>())
        .def_property_readonly("results",
                               [](const TensorCall& call) {
                                   py::tuple results(call.results().size());
                                   for (std::size_t i = 0; i < results.size(); ++i) {
                                       const HostCall::Result& result = call.results()[i];
                                       results[i] =
                                           py::make_tuple(result.name, result.layer, py::tuple(py::cast(result.shape)));
                                   }
                                   return results;
                               })
        .def_property_readonly("usable", &TensorCall::usable)
        .def_property_readonly("bytes", &TensorCall::bytes)
        .def("check_lengths", &TensorCall::check_lengths, py::arg("lengths"), py::call_guard<Inside>())
        .def("run", &TensorCall::run, py::arg("operands"), py::arg("results"), py::arg("stream"), py::arg("memory"),
             py::arg("count"), py::arg("allocator"), py::call_guard<Inside>())
        .def("run_on_host", &TensorCall::run_on_host, py::arg("operands"), py::arg("owner"), py::arg("dtype"),
             py::call_guard<Inside>());
}

}  // namespace vkrnn::python
