// Joins the plans of layers: each reads the buffers that the layer below, or in a gradient call the layer above, has
// written.
#include "vkrnn/network_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "between.h"
#include "cost_table.h"
#include "lanes.h"
#include "scratch.h"

namespace vkrnn {
namespace {

using Links = std::map<std::size_t, std::size_t>;  // from the buffers of a part to those of the whole plan

class Joining {
public:
    Joining(const NetworkSpec& spec, const Lanes& lanes, const Profile& profile, const PlanOf& plan_of)
        : spec_(spec), lanes_(lanes), profile_(profile), plan_of_(plan_of), last_(spec.layers.size() - 1) {
        plan_.spec = spec.layers.front();
        plan_.buffers.push_back({"zeros", Role::scratch, 0});
        plan_.steps.emplace_back(Clear{kZerosBuffer});
    }

    NetworkPlan forward() {
        std::size_t below = kNoBuffer;
        for (std::size_t l = 0; l <= last_; ++l) {
            const Spec layer = begin_layer(l);
            const auto part = plan_of_(layer);
            Links links = link_inputs(*part, l);
            if (l > 0) links[input_of(*part, Argument::source)] = below;
            add(*part, l, links);
            const std::vector<Output> outputs = outputs_of(layer);
            for (std::size_t i = 0; i < outputs.size(); ++i) {
                const std::size_t buffer = links.at(part->results[i]);
                if (outputs[i] == Output::output) below = buffer;
                if (outputs[i] == Output::output && l < last_ && !spec_.layers[l + 1].descriptor.has(Flag::training))
                    plan_.buffers[buffer].role = Role::scratch;
                else
                    add_result({l, outputs[i]}, buffer);
            }
            if (l < last_ && has_between(l)) below = masked(below, l, layer.piece_steps);
        }
        return finish();
    }

    NetworkPlan gradients() {
        std::size_t upstream = kNoBuffer;  // what the layer above has written
        for (std::size_t l = last_ + 1; l-- > spec_.first;) {
            const Spec layer = begin_layer(l);
            const auto part = plan_of_(layer);
            Links links = link_inputs(*part, l);
            if (l < last_) links[input_of(*part, Argument::source_gradient)] = upstream;
            if (l > 0) {
                const std::size_t below = input({l - 1, Output::output}, shape_bytes(l - 1));
                links[input_of(*part, Argument::source)] = has_between(l - 1) ? masked(below, l - 1, 0) : below;
            }
            add(*part, l, links);
            std::size_t i = 0;
            for (const Argument argument : gradient_order_of(layer)) {
                const std::size_t buffer = links.at(part->results[i++]);
                if (argument == Argument::source && l > 0) {
                    plan_.buffers[buffer].role = Role::scratch;
                    upstream = buffer;
                } else {
                    add_result({l, argument}, buffer);
                }
            }
            if (l > spec_.first && has_between(l - 1)) upstream = masked(upstream, l - 1, layer.piece_steps);
        }
        return finish();
    }

private:
    [[nodiscard]] bool has_between(std::size_t layer) const {
        return layer < spec_.between.size() && spec_.between[layer];
    }
    [[nodiscard]] std::uint64_t shape_bytes(std::size_t layer) const {
        const Spec& spec = spec_.layers[layer];
        return static_cast<std::uint64_t>(elements_of(shape_of(spec, Output::output))) * storage_bytes(spec.dtype);
    }

    static std::size_t input_of(const Plan& part, Argument argument) {
        return std::ranges::find(part.inputs, argument, &std::pair<Argument, std::size_t>::first)->second;
    }

    // Returns the plan's buffer for an input of the call, and adds it if it is new.
    std::size_t input(const NetworkTensor& tensor, std::uint64_t bytes) {
        const auto [found, is_new] = inputs_.try_emplace(tensor, plan_.buffers.size());
        if (is_new) {
            plan_.buffers.push_back({name_of(tensor), Role::input, bytes});
            const auto* const argument = std::get_if<Argument>(&tensor.what);
            plan_.inputs.emplace_back(argument != nullptr ? *argument : Argument::output_fwd, found->second);
            made_.inputs.push_back(tensor);
        }
        return found->second;
    }

    static std::string name_of(const NetworkTensor& tensor) {
        const std::string layer = "layer " + std::to_string(tensor.layer) + ": ";
        if (const auto* const argument = std::get_if<Argument>(&tensor.what))
            return layer + std::string(vkrnn::name_of(*argument));
        if (const auto* const output = std::get_if<Output>(&tensor.what))
            return layer + std::string(vkrnn::name_of(*output));
        return layer + "mask between layers";
    }

    void add_result(const NetworkTensor& tensor, std::size_t buffer) {
        plan_.results.push_back(buffer);
        made_.results.push_back(tensor);
    }

    // Returns links for the inputs of a layer, except those that other layers write.
    Links link_inputs(const Plan& part, std::size_t layer) {
        Links links;
        for (const auto& [argument, buffer] : part.inputs) {
            const std::uint64_t bytes = part.buffers[buffer].bytes;
            const bool is_linked =
                (argument == Argument::source && layer > 0) || (argument == Argument::source_gradient && layer < last_);
            if (!is_linked) links[buffer] = input(tensor_of(argument, layer), bytes);
        }
        return links;
    }

    // Adds the product of a layer's output, or of its gradient, with the mask above the layer. Returns its buffer.
    // In pieces, it belongs to the last lane.
    std::size_t masked(std::size_t buffer, std::size_t layer, std::int64_t piece_steps) {
        Spec spec = spec_.layers[layer];
        spec.piece_steps = piece_steps;
        spec.last_states = false;
        spec.mask_varies = {true, true, true};
        if (spec.N == 0) return buffer;
        const Plan part = make_between_plan(spec, profile_);
        Links links{{input_of(part, Argument::output_fwd), buffer},
                    {input_of(part, Argument::mask), input({layer, Between{}}, shape_bytes(layer))}};
        add(part, layer, links, false);
        const std::size_t result = links.at(part.results.front());
        plan_.buffers[result].role = Role::scratch;
        return result;
    }

    // Returns the spec of a layer as a lane, or alone. Ends the lanes before it if it does not join them.
    Spec begin_layer(std::size_t l) {
        Spec layer = spec_.layers[l];
        const auto group = std::ranges::find_if(
            lanes_.groups, [&](const LaneGroup& each) { return each.first <= l && l < each.first + each.count; });
        const bool is_lane = group != lanes_.groups.end();
        if (!is_lane || l == (layer.gradients ? group->first + group->count - 1 : group->first)) end_lanes();
        if (is_lane) {
            layer.piece_steps = lanes_.piece_steps;
            layer.lanes = static_cast<std::int64_t>(group->count);
        }
        return layer;
    }

    // Adds a part's lane to the wavefront, or its pieces to the last lane.
    void add_lane(Wavefront::Lane lane, bool is_new) {
        if (is_new) return wavefront_.lanes.push_back(std::move(lane));
        Wavefront::Lane& last = wavefront_.lanes.back();
        const auto append = [](Sequence& to, Sequence& from) { std::ranges::move(from, std::back_inserter(to)); };
        append(last.before, lane.before);
        for (std::size_t i = 0; i < lane.pieces.size(); ++i) append(last.pieces[i], lane.pieces[i]);
        append(last.after, lane.after);
    }

    // Adds the wavefront, and then what its layers do after it.
    void end_lanes() {
        if (wavefront_.lanes.empty()) return;
        const auto lanes = static_cast<double>(wavefront_.lanes.size());
        const auto pieces = static_cast<double>(wavefront_.lanes.front().pieces.size());
        const LaneCosts& costs = costs_of(profile_).lanes;
        std::int64_t dispatches = 0;
        for (const Wavefront::Lane& lane : wavefront_.lanes)
            for (const Sequence& piece : lane.pieces)
                for (const auto& step : piece)
                    for_each_dispatch(step, [&](const Dispatch& /*dispatch*/) { ++dispatches; });
        const double waits = static_cast<double>(dispatches) / lanes *
                             (spec_.layers.front().gradients ? costs.backward_dispatch : costs.forward_dispatch);
        plan_.loop_microseconds += (longest_lane_ + waits) * (pieces + lanes - 1) / pieces;
        longest_lane_ = 0;
        std::size_t others = 0;
        for (const Wavefront::Lane& lane : wavefront_.lanes)
            others = std::max(others, lane.before.size() + lane.after.size());
        plan_.products_microseconds += costs.other_dispatch * static_cast<double>(others);
        plan_.steps.emplace_back(std::exchange(wavefront_, {}));
        std::ranges::move(after_lanes_, std::back_inserter(plan_.steps));
        after_lanes_.clear();
    }

    // Adds a part. `links` has its inputs, and gets all its other buffers.
    void add(const Plan& part, std::size_t layer, Links& links, bool is_layer = true) {
        const bool has_zeros = !part.kernels.empty();  // those of an empty batch have no kernels
        if (has_zeros) {
            links[kZerosBuffer] = kZerosBuffer;
            plan_.buffers[kZerosBuffer].bytes =
                std::max(plan_.buffers[kZerosBuffer].bytes, part.buffers[kZerosBuffer].bytes);
        }
        for (std::size_t i = 0; i < part.buffers.size(); ++i) {
            if (links.contains(i)) continue;
            links[i] = plan_.buffers.size();
            plan_.buffers.push_back(part.buffers[i]);
            PlanBuffer& buffer = plan_.buffers.back();
            buffer.name = "layer " + std::to_string(layer) + ": " + buffer.name;
        }
        for (std::size_t i = 0; i < part.buffers.size(); ++i) {
            PlanBuffer& buffer = plan_.buffers[links[i]];
            if (part.buffers[i].role == Role::constant) rebase(buffer.contents, links);
            if (part.buffers[i].role == Role::prepacked) link_prepacked(buffer, links);
        }
        if (layer == 0) plan_.choice = part.choice;
        plan_.flops += part.flops;
        plan_.products_microseconds += part.products_microseconds;
        if (part.spec.piece_steps == 0)
            plan_.loop_microseconds += part.loop_microseconds;
        else
            longest_lane_ = std::max(longest_lane_, part.loop_microseconds);
        std::vector<Step> before, after;
        std::optional<Wavefront::Lane> lane;
        bool is_first = true;
        for (Step step : part.steps) {
            for_each_dispatch(step, [&](Dispatch& dispatch) { link(dispatch, part, links); });
            if (auto* clear = std::get_if<Clear>(&step)) {
                if (has_zeros && clear->buffer == kZerosBuffer) continue;
                *clear = {links.at(clear->buffer), filled(clear->fills, links)};
            } else if (auto* wavefront = std::get_if<Wavefront>(&step)) {
                lane = std::move(wavefront->lanes.front());
                is_first = true;
                continue;
            } else if (auto* dispatch = std::get_if<Dispatch>(&step)) {
                dispatch->after |= is_first;  // what it reads may be what another part has just written
            }
            is_first = is_first && std::holds_alternative<Clear>(step);
            (lane ? after : before).push_back(std::move(step));
        }
        if (lane) {
            move_into_lane(before, lane->before);
            move_into_lane(after, lane->after);
            add_lane(std::move(*lane), is_layer);
        }
        std::ranges::move(before, std::back_inserter(plan_.steps));
        std::ranges::move(after, std::back_inserter(after_lanes_));
    }

    // Moves what a layer does before or after its pieces into its lane, so that it runs beside other lanes. On the CPU,
    // all threads share it instead.
    void move_into_lane(std::vector<Step>& steps, Sequence& to) const {
        if (profile_.backend == Backend::native) return;
        std::vector<Step> clears;
        for (Step& step : steps) {
            if (auto* const dispatch = std::get_if<Dispatch>(&step))
                to.emplace_back(std::move(*dispatch));
            else if (auto* const loop = std::get_if<Loop>(&step))
                to.emplace_back(std::move(*loop));
            else
                clears.push_back(std::move(step));
        }
        steps = std::move(clears);
    }

    // A prepacked copy is kept with its input. What another layer writes has no copies.
    void link_prepacked(PlanBuffer& buffer, const Links& links) const {
        buffer.prepacking.input = links.at(buffer.prepacking.input);
        if (plan_.buffers[buffer.prepacking.input].role == Role::input) return;
        buffer.prepacking = {};
        buffer.role = Role::scratch;
    }

    [[nodiscard]] std::size_t filled(std::size_t fills, const Links& links) const {
        if (fills == kNoBuffer) return fills;
        const std::size_t buffer = links.at(fills);
        return plan_.buffers[buffer].role == Role::prepacked ? buffer : kNoBuffer;
    }

    void link(Dispatch& dispatch, const Plan& part, const Links& links) {
        rebase(dispatch.push, links);
        dispatch.fills = filled(dispatch.fills, links);
        const Kernel& kernel = part.kernels[dispatch.kernel];
        const auto found = std::ranges::find(plan_.kernels, kernel);
        dispatch.kernel = static_cast<std::size_t>(found - plan_.kernels.begin());
        if (found == plan_.kernels.end()) plan_.kernels.push_back(kernel);
    }

    static void rebase(Block& block, const Links& links) {
        for (std::uint32_t i = 0; i < block.references; ++i) {
            const BufferReference before = reference_at(block, i);
            const auto found = links.find(referenced_buffer(before));
            if (found == links.end()) continue;  // refers to no buffer
            const BufferReference after = reference_to(found->second, referenced_offset(before));
            std::memcpy(block.bytes.data() + i * sizeof(after), &after, sizeof(after));
        }
    }

    NetworkPlan finish() {
        end_lanes();
        const auto others =
            std::ranges::count_if(plan_.steps, [](const Step& step) { return std::holds_alternative<Dispatch>(step); });
        plan_.products_microseconds += costs_of(profile_).lanes.other_dispatch * static_cast<double>(others);
        clear_first(plan_);
        plan_.shared = shared_scratch(plan_, profile_.max_allocation);
        made_.plan = std::make_shared<const Plan>(std::move(plan_));
        return std::move(made_);
    }

    const NetworkSpec& spec_;
    const Lanes& lanes_;
    const Profile& profile_;
    const PlanOf& plan_of_;
    const std::size_t last_;
    Plan plan_;
    NetworkPlan made_;
    std::map<NetworkTensor, std::size_t> inputs_;
    Wavefront wavefront_;            // of the layers that have been added last
    std::vector<Step> after_lanes_;  // what these layers do after it
    double longest_lane_ = 0;        // estimated microseconds of its loop
};

}  // namespace

NetworkTensor tensor_of(Argument argument, std::size_t layer) {
    switch (argument) {
        case Argument::lengths:
        case Argument::reset: return {0, argument};
        case Argument::z_state: return {layer, Output::z_state};
        default: break;
    }
    for (const StateTensors& state : kStateTensors)
        if (argument == state.forward) return {layer, state.sequence};
    return {layer, argument};
}

NetworkPlan join_layers(const NetworkSpec& spec, const Lanes& lanes, const Profile& profile, const PlanOf& plan_of) {
    Joining joining(spec, lanes, profile, plan_of);
    return spec.layers.front().gradients ? joining.gradients() : joining.forward();
}

}  // namespace vkrnn
