#include "builder.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "strategy.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

// Collects the buffers that a block references, directly or through constants. Inputs and constants are left out,
// because no step writes them.
void collect_written(const Block& block, const std::vector<PlanBuffer>& buffers, std::set<std::size_t>& found) {
    for (std::size_t i = 0; i < block.references; ++i) {
        const std::size_t buffer = referenced_buffer(reference_at(block, i));
        const Role role = buffers.at(buffer).role;
        if (role == Role::constant) {
            collect_written(buffers[buffer].contents, buffers, found);
        } else if (role != Role::input) {
            found.insert(buffer);
        }
    }
}

}  // namespace

std::uint32_t u32(std::int64_t value) {
    if (value < 0 || value > std::numeric_limits<std::uint32_t>::max())
        throw TooLarge("expected at most 4,294,967,295 rows or elements in one kernel, got " + std::to_string(value));
    return static_cast<std::uint32_t>(value);
}

TimeRows rows_of_piece(const Spec& spec, std::int64_t piece) {
    const std::int64_t begin = piece * spec.piece_steps, end = std::min(spec.T, begin + spec.piece_steps);
    return spec.gradients ? TimeRows{spec.T - end, spec.T - begin} : TimeRows{begin, end};
}

Product part_of(const Product& product, const TimeRows& rows, std::int64_t N) {
    Product part = product;
    part.m = (rows.end - rows.begin) * N;
    part.whole_m = product.m;
    part.a.offset += rows.begin * N * product.a.ld;
    part.c.offset += rows.begin * N * product.c.ld;
    return part;
}

PlanBuilder::PlanBuilder(const Spec& spec, const Profile& profile, const Chosen& chosen)
    : profile_(profile), products_(chosen.products) {
    plan_.spec = spec;
    plan_.choice = chosen.choice;
    plan_.loop_microseconds = chosen.loop_microseconds;
    plan_.products_microseconds = chosen.products_microseconds;
    clear(scratch("zeros", spec.H));
}

std::uint64_t PlanBuilder::bytes(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements) * compute_bytes(plan_.spec.dtype);
}

std::uint64_t PlanBuilder::bytes_of_caller(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements) * storage_bytes(plan_.spec.dtype);
}

BufferReference PlanBuilder::at(std::size_t buffer, std::int64_t element) const {
    return reference_to(buffer, static_cast<std::uint64_t>(element) * element_bytes(buffer));
}

std::uint64_t PlanBuilder::element_bytes(std::size_t buffer) const {
    return is_16bit(buffer) ? storage_bytes(plan_.spec.dtype) : compute_bytes(plan_.spec.dtype);
}

std::int64_t PlanBuilder::count_of(std::size_t buffer) const {
    return static_cast<std::int64_t>(plan_.buffers.at(buffer).bytes / element_bytes(buffer));
}

std::uint64_t PlanBuilder::stored(std::initializer_list<std::size_t> tensors) const {
    std::uint64_t bits = 0, bit = 1;
    for (const std::size_t buffer : tensors) {
        if (is_16bit(buffer)) bits |= bit;
        bit <<= 1;
    }
    return bits;
}

std::size_t PlanBuilder::add_buffer(std::string name, Role role, std::uint64_t bytes) {
    plan_.buffers.push_back({std::move(name), role, bytes});
    return plan_.buffers.size() - 1;
}

std::size_t PlanBuilder::scratch(std::string name, std::int64_t elements) {
    return add_buffer(std::move(name), Role::scratch, bytes(elements));
}

std::size_t PlanBuilder::failed_waits() {
    return add_buffer("failed waits", Role::failed_waits, sizeof(std::uint32_t));
}

std::size_t PlanBuilder::scratch_like(std::size_t other, std::string name, std::int64_t elements) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(elements) * element_bytes(other);
    const std::size_t buffer = add_buffer(std::move(name), Role::scratch, bytes);
    if (is_16bit(other)) sixteen_bits_.insert(buffer);
    return buffer;
}

std::size_t PlanBuilder::scratch_16bit(std::string name, std::int64_t elements) {
    const std::size_t buffer = add_buffer(std::move(name), Role::scratch, bytes_of_caller(elements));
    sixteen_bits_.insert(buffer);
    return buffer;
}

std::size_t PlanBuilder::scratch_sequence(std::string name, std::int64_t elements, bool live_only) {
    const std::size_t buffer = scratch(std::move(name), plan_.spec.rows() * elements);
    if (live_only && plan_.spec.has(Argument::lengths)) live_only_.insert(buffer);
    return buffer;
}

std::size_t PlanBuilder::input(Argument argument) {
    const std::string name(name_of(argument));
    const std::int64_t elements = elements_of(shape_of(plan_.spec, argument));
    const bool integers = argument == Argument::lengths;
    const std::uint64_t bytes = static_cast<std::uint64_t>(elements) * element_bytes_of(plan_.spec, argument);
    const std::size_t buffer = add_buffer(name, Role::input, bytes);
    plan_.inputs.emplace_back(argument, buffer);
    if (argument == Argument::reset && plan_.spec.bool_reset) {
        const std::size_t made = scratch("factors of " + name, elements);
        products_.convert(*this, "factors of " + name, {buffer, made, elements, false, true}, true);
        return made;
    }
    if (integers || !is_half(plan_.spec.dtype)) return buffer;
    if (accesses_16bit()) {
        sixteen_bits_.insert(buffer);
        return buffer;
    }
    const std::size_t wide = scratch(name + " in float32", elements);
    widened_.emplace(wide, buffer);
    products_.convert(*this, "widen " + name, {buffer, wide, elements}, true);
    return wide;
}

std::size_t PlanBuilder::result(Output output) {
    return add_result(std::string(name_of(output)), shape_of(plan_.spec, output));
}

std::size_t PlanBuilder::result(Argument argument) {
    return add_result("gradient of " + std::string(name_of(argument)), shape_of(plan_.spec, argument));
}

std::size_t PlanBuilder::read_result(Argument argument) {
    return add_result("gradient of " + std::string(name_of(argument)), shape_of(plan_.spec, argument), true);
}

std::size_t PlanBuilder::read_result(Output output) {
    return add_result(std::string(name_of(output)), shape_of(plan_.spec, output), true);
}

std::size_t PlanBuilder::add_result(std::string name, const TensorShape& shape, bool is_read) {
    const std::int64_t elements = elements_of(shape);
    const std::size_t buffer = add_buffer(name, Role::result, bytes_of_caller(elements));
    plan_.results.push_back(buffer);
    if (!is_half(plan_.spec.dtype)) return buffer;
    if (accesses_16bit() && !is_read) {
        sixteen_bits_.insert(buffer);
        return buffer;
    }
    const std::size_t wide = scratch(std::move(name) + " in float32", elements);
    narrowings_.push_back({wide, buffer, elements, true});
    return wide;
}

Plan PlanBuilder::finish() {
    end_start_of_loop();
    bool first = true;
    for (const Conversion& narrowing : narrowings_) {
        products_.convert(*this, "narrow " + plan_.buffers[narrowing.to].name, narrowing, !first);
        first = false;
    }
    return std::move(plan_);
}

std::size_t PlanBuilder::input_of(Argument argument) const {
    return std::ranges::find(plan_.inputs, argument, &std::pair<Argument, std::size_t>::first)->second;
}

std::size_t PlanBuilder::constant(std::string name, Block contents) {
    for (std::size_t buffer = 0; buffer < plan_.buffers.size(); ++buffer)
        if (plan_.buffers[buffer].role == Role::constant && plan_.buffers[buffer].contents == contents) return buffer;
    const auto bytes = contents.bytes.size();
    plan_.buffers.push_back({std::move(name), Role::constant, bytes, std::move(contents)});
    return plan_.buffers.size() - 1;
}

std::size_t PlanBuilder::prepacked(std::string name, std::int64_t elements, std::size_t from,
                                   std::vector<std::int64_t> layout, bool optional) {
    const std::size_t buffer = scratch(std::move(name), elements);
    if (const auto widened = widened_.find(from); widened != widened_.end()) from = widened->second;
    if (plan_.buffers.at(from).role == Role::input) {
        plan_.buffers[buffer].role = Role::prepacked;
        plan_.buffers[buffer].prepacking = {from, std::move(layout), optional};
    }
    return buffer;
}

std::size_t PlanBuilder::kernel(std::string shader, Constants constants) {
    if (plan_.spec.dtype == Dtype::float64) shader += "_f64";
    if (constants.has_16bit_tensors()) shader += "_16bit";
    Kernel kernel = std::move(constants).kernel(std::move(shader));
    const auto found = std::find(plan_.kernels.begin(), plan_.kernels.end(), kernel);
    if (found != plan_.kernels.end()) return static_cast<std::size_t>(found - plan_.kernels.begin());
    plan_.kernels.push_back(std::move(kernel));
    return plan_.kernels.size() - 1;
}

std::size_t PlanBuilder::cell_kernel(const std::string& name, Constants constants) {
    return kernel(std::string(plan_.spec.cell().shader) + "_" + name, std::move(constants));
}

std::array<std::uint32_t, 3> PlanBuilder::groups(std::int64_t linear, std::int64_t z) const {
    const std::int64_t y = ceil_div(linear, abi::kGroupsInX);
    return {y == 1 ? u32(linear) : abi::kGroupsInX, u32(y), u32(z)};
}

void PlanBuilder::dispatch(const std::string& label, std::size_t kernel, std::array<std::uint32_t, 3> groups,
                           Block push, bool independent, std::size_t fills) {
    const bool after = waits(push, independent);
    plan_.steps.emplace_back(Dispatch{label, kernel, groups, std::move(push), after, std::nullopt, fills});
}

void PlanBuilder::clear(std::size_t buffer, std::size_t fills) {
    plan_.steps.emplace_back(Clear{buffer, fills});
    used_.insert(buffer);  // not in fresh_, because recording puts a barrier after it
}

std::vector<Step> PlanBuilder::taken(const std::function<void()>& add) {
    std::vector<Step> before = std::exchange(plan_.steps, {});
    add();
    std::vector<Step> found = std::exchange(plan_.steps, std::move(before));
    const auto clears = std::stable_partition(found.begin(), found.end(),
                                              [](const Step& step) { return !std::holds_alternative<Clear>(step); });
    std::move(clears, found.end(), std::back_inserter(plan_.steps));
    found.erase(clears, found.end());
    return found;
}

void PlanBuilder::add_branches(std::vector<Step> one, std::vector<Step> other) {
    const auto sequence_of = [](std::vector<Step>& steps) {
        Sequence made;
        for (Step& step : steps) made.emplace_back(std::get<Dispatch>(std::move(step)));
        return made;
    };
    if (!one.empty() && !other.empty()) return add(Branches{{sequence_of(one), sequence_of(other)}});
    std::ranges::move(one, std::back_inserter(plan_.steps));
    std::ranges::move(other, std::back_inserter(plan_.steps));
}

void PlanBuilder::beside(const std::function<void()>& one, const std::function<void()>& other) {
    if (plan_.spec.piece_steps == 0 && products_.runs_beside(plan_.spec)) return add_branches(taken(one), taken(other));
    one();
    other();
}

void PlanBuilder::beside_start_of_loop(const std::function<void()>& one) {
    if (plan_.spec.piece_steps != 0 || !products_.runs_beside(plan_.spec)) return one();
    beside_loop_ = taken(one);
    loop_start_ = plan_.steps.size();
}

void PlanBuilder::end_start_of_loop() {
    if (!beside_loop_) return;
    std::vector<Step> one = *std::exchange(beside_loop_, std::nullopt), other;
    const auto start = plan_.steps.begin() + static_cast<std::ptrdiff_t>(loop_start_);
    std::vector<Step> all(std::make_move_iterator(start), std::make_move_iterator(plan_.steps.end()));
    plan_.steps.erase(start, plan_.steps.end());
    for (Step& step : all) (std::holds_alternative<Clear>(step) ? plan_.steps : other).push_back(std::move(step));
    add_branches(std::move(one), std::move(other));
}

void PlanBuilder::add(Step step) {
    end_start_of_loop();
    plan_.steps.push_back(std::move(step));
    after_loop_ = true;
}

void PlanBuilder::add(Loop loop, std::int64_t steps) {
    const std::int64_t piece_steps = plan_.spec.piece_steps;
    if (piece_steps == 0) return add(Step(std::move(loop)));
    const std::int64_t turns = piece_steps / steps;  // of a piece
    Wavefront::Lane lane;
    for (std::int64_t begin = 0; begin < loop.count; begin += turns) {
        const auto first = static_cast<std::int32_t>(loop.first + begin * loop.increment);
        lane.pieces.push_back({Loop{std::min(turns, loop.count - begin), first, loop.increment, loop.body}});
    }
    lane_ = plan_.steps.size();
    add(Step(Wavefront{{std::move(lane)}}));
}

void PlanBuilder::add_lane(const std::function<void(const TimeRows&)>& add) {
    lane_ = plan_.steps.size();
    Wavefront::Lane lane;
    lane.pieces.resize(static_cast<std::size_t>(plan_.spec.pieces()));
    this->add(Step(Wavefront{{std::move(lane)}}));
    add_to_pieces(Place::after, add);
}

void PlanBuilder::add_to_pieces(Place place, const std::function<void(const TimeRows&)>& add) {
    adds_pieces_ = true;
    const auto pieces = [this]() -> std::vector<Sequence>& {
        return std::get<Wavefront>(plan_.steps.at(lane_)).lanes.front().pieces;
    };
    for (std::size_t i = 0; i < pieces().size(); ++i) {
        const TimeRows rows = rows_of_piece(plan_.spec, static_cast<std::int64_t>(i));
        Sequence made;
        for (Dispatch& dispatch : collect([&] { add(rows); })) {
            dispatch.after = true;
            made.emplace_back(std::move(dispatch));
        }
        plan_.steps.insert(plan_.steps.begin() + static_cast<std::ptrdiff_t>(lane_),
                           std::make_move_iterator(before_lane_.begin()), std::make_move_iterator(before_lane_.end()));
        lane_ += before_lane_.size();
        before_lane_.clear();
        Sequence& piece = pieces()[i];
        piece.insert(place == Place::before ? piece.begin() : piece.end(), std::make_move_iterator(made.begin()),
                     std::make_move_iterator(made.end()));
    }
    adds_pieces_ = false;
    after_loop_ = true;
}

void PlanBuilder::before_lane(const std::function<void()>& add) {
    if (!adds_pieces_) return add();
    std::vector<Step> piece = std::exchange(plan_.steps, {});
    add();
    for (Step& step : std::exchange(plan_.steps, std::move(piece))) {
        if (auto* dispatch = std::get_if<Dispatch>(&step)) dispatch->after = true;
        before_lane_.push_back(std::move(step));
    }
}

std::vector<Dispatch> PlanBuilder::collect(const std::function<void()>& add) {
    std::vector<Step> before = std::exchange(plan_.steps, {});
    add();
    std::vector<Dispatch> found;
    for (Step& step : std::exchange(plan_.steps, std::move(before)))
        found.push_back(std::get<Dispatch>(std::move(step)));
    return found;
}

bool PlanBuilder::waits(const Block& push, bool independent) {
    std::set<std::size_t> touched;
    collect_written(push, plan_.buffers, touched);
    const bool reads_fresh = std::ranges::any_of(touched, [&](std::size_t buffer) { return fresh_.contains(buffer); });
    const bool waits = !independent || after_loop_ || reads_fresh;
    if (waits) fresh_.clear();
    after_loop_ = false;
    for (const std::size_t buffer : touched)
        if (used_.insert(buffer).second) fresh_.insert(buffer);
    return waits;
}

void PlanBuilder::product(const std::string& label, const Product& p, bool independent) {
    count_flops(2.0 * static_cast<double>(p.sets * p.batches * p.m * p.n) * static_cast<double>(p.k));
    if (products_.takes_sets()) return products_.product(*this, label, p, independent);
    Product set = p;
    set.sets = 1;
    for (std::int64_t i = 0; i < p.sets; ++i) {
        products_.product(*this, label, set, independent || i > 0);
        for (Matrix* matrix : {&set.a, &set.b, &set.c}) matrix->offset += matrix->set;
    }
}

void PlanBuilder::row_sum(const std::string& label, const RowSum& sum, bool independent) {
    products_.row_sum(*this, label, sum, independent);
}

void PlanBuilder::last_rows(const std::string& label, const LastRows& rows, bool independent) {
    products_.last_rows(*this, label, rows, independent);
}

void PlanBuilder::combine(const std::string& label, const Combination& combination, bool independent) {
    products_.combine(*this, label, combination, independent);
}

void PlanBuilder::copy_rows(const std::string& label, const RowCopy& copy, bool independent) {
    products_.copy_rows(*this, label, copy, independent);
}

void PlanBuilder::round(const std::string& label, std::size_t buffer, std::int64_t elements) {
    if (!is_half(plan_.spec.dtype) || is_16bit(buffer)) return;
    const std::size_t narrow = scratch_16bit(label + " in 16 bits", elements);
    products_.convert(*this, "narrow " + label, {buffer, narrow, elements, true}, false);
    products_.convert(*this, "widen " + label, {narrow, buffer, elements, false}, false);
}

}  // namespace vkrnn
