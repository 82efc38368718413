#include "builder.h"

#include <algorithm>
#include <limits>
#include <string>

#include "native/native_plan.h"
#include "vkrnn/error.h"

namespace vkrnn {

namespace {

// Enough workgroups to fill a large GPU twice; a product with fewer tiles is split along k.
constexpr std::int64_t kTargetGroups = 264;
constexpr std::int64_t kMinChunk = 512;  // of k: less is not worth a slab
constexpr std::int64_t kChunkMultiple = 64;
// Of k, where the driver ends loops early; the register flavour takes about k / 4 iterations.
constexpr std::int64_t kLimitedChunk = 32768;
constexpr std::int64_t kRowsPerPart = 256;
constexpr std::int64_t kMaxParts = 1024;

// The kernels count in 32 bits.
std::uint32_t u32(std::int64_t value) {
    if (value < 0 || value > std::numeric_limits<std::uint32_t>::max())
        throw NotImplementedError("a call with " + std::to_string(value) +
                                  " rows or elements in one kernel; 4,294,967,295 is the most");
    return static_cast<std::uint32_t>(value);
}

// Whether an operand can be read four elements at a time.
bool aligned(const Matrix& matrix, std::int64_t extent, std::int64_t k) {
    return matrix.ld % 4 == 0 && matrix.batch % 4 == 0 && matrix.offset % 4 == 0 &&
           (matrix.columns ? extent : k) % 4 == 0;
}

}  // namespace

PlanBuilder::PlanBuilder(const Spec& spec, const Profile& profile, const Flavour& flavour) : profile_(profile) {
    plan_.spec = spec;
    plan_.flavour = flavour;
    clear(scratch("zeros", spec.H));
}

std::uint64_t PlanBuilder::bytes(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements) * compute_bytes(plan_.spec.dtype);
}

std::uint64_t PlanBuilder::bytes_of_caller(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements) * storage_bytes(plan_.spec.dtype);
}

Place PlanBuilder::at(std::size_t buffer, std::int64_t element) const { return place(buffer, bytes(element)); }

std::size_t PlanBuilder::add_buffer(std::string name, Role role, std::uint64_t bytes) {
    plan_.buffers.push_back({std::move(name), role, bytes});
    return plan_.buffers.size() - 1;
}

std::size_t PlanBuilder::scratch(std::string name, std::int64_t elements) {
    return add_buffer(std::move(name), Role::scratch, bytes(elements));
}

std::size_t PlanBuilder::input(Argument argument, std::int64_t elements) {
    const std::string name(name_of(argument));
    const std::size_t buffer = add_buffer(name, Role::input, bytes_of_caller(elements));
    plan_.inputs.emplace_back(argument, buffer);
    if (!is_half(plan_.spec.dtype)) return buffer;
    const std::size_t wide = scratch(name + " in float32", elements);
    convert("widen " + name, buffer, wide, elements, false, true);
    return wide;
}

std::size_t PlanBuilder::integers(Argument argument, std::int64_t elements) {
    const auto bytes = static_cast<std::uint64_t>(elements) * sizeof(std::int32_t);
    const std::size_t buffer = add_buffer(std::string(name_of(argument)), Role::input, bytes);
    plan_.inputs.emplace_back(argument, buffer);
    return buffer;
}

std::size_t PlanBuilder::result(std::string name, std::int64_t elements) {
    const std::size_t buffer = add_buffer(name, Role::result, bytes_of_caller(elements));
    plan_.results.push_back(buffer);
    if (!is_half(plan_.spec.dtype)) return buffer;
    const std::size_t wide = scratch(std::move(name) + " in float32", elements);
    narrowings_.push_back({wide, buffer, elements});
    return wide;
}

Plan PlanBuilder::finish() {
    bool first = true;
    for (const Narrowing& narrowing : narrowings_) {
        convert("narrow " + plan_.buffers[narrowing.to].name, narrowing.from, narrowing.to, narrowing.elements, true,
                !first);
        first = false;
    }
    return std::move(plan_);
}

void PlanBuilder::convert(const std::string& label, std::size_t from, std::size_t to, std::int64_t elements,
                          bool narrow, bool independent) {
    if (native()) return native_convert(*this, label, from, to, elements, narrow);
    abi::ConvertPush push{};
    push.in_ = place(from, 0);
    push.out_ = place(to, 0);
    push.count = u32(elements);
    const std::uint32_t bfloat = plan_.spec.dtype == Dtype::bfloat16;
    const std::int64_t workgroups = ceil_div(ceil_div(elements, 2), abi::kElementwiseGroup);
    dispatch(label, kernel("convert", {bfloat, narrow}), groups(workgroups), make_block(push, abi::kConvertPlaces),
             independent);
}

std::size_t PlanBuilder::constant(std::string name, Block contents) {
    const auto bytes = contents.bytes.size();
    plan_.buffers.push_back({std::move(name), Role::constant, bytes, std::move(contents)});
    return plan_.buffers.size() - 1;
}

std::size_t PlanBuilder::packed(std::string name, std::int64_t elements, std::size_t from,
                                std::vector<std::int64_t> layout) {
    const std::size_t buffer = scratch(std::move(name), elements);
    const bool is_input =
        std::any_of(plan_.inputs.begin(), plan_.inputs.end(), [&](const auto& input) { return input.second == from; });
    if (is_input) {
        plan_.buffers[buffer].role = Role::packed;
        plan_.buffers[buffer].packing = {from, std::move(layout)};
    }
    return buffer;
}

std::size_t PlanBuilder::kernel(std::string shader, std::vector<std::uint32_t> constants) {
    if (plan_.spec.dtype == Dtype::float64) shader += "_f64";
    Kernel kernel{std::move(shader), std::move(constants)};
    const auto found = std::find(plan_.kernels.begin(), plan_.kernels.end(), kernel);
    if (found != plan_.kernels.end()) return static_cast<std::size_t>(found - plan_.kernels.begin());
    plan_.kernels.push_back(std::move(kernel));
    return plan_.kernels.size() - 1;
}

std::array<std::uint32_t, 3> PlanBuilder::groups(std::int64_t linear, std::int64_t z) const {
    const std::int64_t y = ceil_div(linear, abi::kGroupsInX);
    return {y == 1 ? u32(linear) : abi::kGroupsInX, u32(y), u32(z)};
}

void PlanBuilder::dispatch(const std::string& label, std::size_t kernel, std::array<std::uint32_t, 3> groups,
                           Block push, bool independent) {
    plan_.steps.emplace_back(Dispatch{label, kernel, groups, std::move(push), !independent});
}

void PlanBuilder::product(const std::string& label, const Product& p, bool independent) {
    count_flops(2.0 * static_cast<double>(p.batches * p.m * p.n) * static_cast<double>(p.k));
    if (native()) return native_product(*this, label, p);
    const bool tiled = plan_.flavour.gemm == "tiled";
    const std::int64_t tile_m = tiled ? abi::kTiledTile : abi::kRegisterTileM;
    const std::int64_t tile_n = tiled ? abi::kTiledTile : std::int64_t{abi::kRegisterTileN} * profile_.subgroup_size;
    const std::int64_t tiles = ceil_div(p.m, tile_m) * ceil_div(p.n, tile_n);

    // Slabs are whole contiguous copies of C, batch after batch, which a sum over rows then adds up.
    const std::int64_t size = p.m * p.n;
    const bool splittable = p.c.ld == p.n && (p.batches == 1 || p.c.batch == size);
    std::int64_t slabs = 1;
    if (tiled && splittable)
        slabs = std::clamp(ceil_div(kTargetGroups, tiles * p.batches), std::int64_t{1}, ceil_div(p.k, kMinChunk));
    std::int64_t chunk = ceil_div(ceil_div(p.k, slabs), kChunkMultiple) * kChunkMultiple;
    if (profile_.max_loop_iterations != 0 && splittable) chunk = std::min(chunk, kLimitedChunk);
    slabs = ceil_div(p.k, chunk);

    const bool vectors = aligned(p.a, p.m, p.k) && aligned(p.b, p.n, p.k);
    std::vector<std::uint32_t> constants{p.a.columns, p.b.columns, vectors};
    if (!tiled) constants.push_back(profile_.subgroup_size);

    Matrix c = p.c;
    if (slabs > 1) c = {scratch(label + " slabs", slabs * p.batches * size), 0, p.n, size, false};

    abi::GemmPush push{};
    push.a = at(p.a.buffer, p.a.offset);
    push.b = at(p.b.buffer, p.b.offset);
    push.c = at(c.buffer, c.offset);
    push.a_batch = p.a.batch;
    push.b_batch = p.b.batch;
    push.c_batch = c.batch;
    push.c_slab = p.batches * size;
    push.m = u32(p.m);
    push.n = u32(p.n);
    push.k = u32(p.k);
    push.lda = u32(p.a.ld);
    push.ldb = u32(p.b.ld);
    push.ldc = u32(c.ld);
    push.chunk = u32(chunk);
    push.batches = u32(p.batches);
    dispatch(label, kernel(tiled ? "gemm_tiled" : "gemm_register", std::move(constants)),
             groups(tiles, slabs * p.batches), make_block(push, abi::kGemmPlaces), independent);

    if (slabs == 1) return;

    add_parts(label + ": add slabs", c.buffer, slabs, p.batches * size, p.c.buffer, p.c.offset);
}

void PlanBuilder::row_sum(const std::string& label, const RowSum& sum, bool independent) {
    if (native()) return native_row_sum(*this, label, sum);
    const std::int64_t columns = sum.directions * sum.gates * sum.width;
    const std::int64_t part = std::max(kRowsPerPart, ceil_div(sum.rows, kMaxParts));
    const std::int64_t parts = ceil_div(sum.rows, part);
    const std::size_t out = parts == 1 ? sum.out : scratch(label + " parts", parts * columns);
    const std::int64_t out_offset = parts == 1 ? sum.out_offset : 0;

    abi::ReducePush push{};
    push.in_ = at(sum.in.buffer, sum.in.offset);
    push.out_ = at(out, out_offset);
    push.rows = u32(sum.rows);
    push.part = u32(part);
    push.width = u32(sum.width);
    push.gates = u32(sum.gates);
    push.directions = u32(sum.directions);
    push.in_row = u32(sum.in.row);
    push.in_direction = u32(sum.in.direction);
    push.in_gate = u32(sum.in.gate);
    if (sum.factor) {
        push.factor = at(sum.factor->buffer, sum.factor->offset);
        push.factor_row = u32(sum.factor->row);
        push.factor_direction = u32(sum.factor->direction);
        push.factor_gate = u32(sum.factor->gate);
    }
    dispatch(label, kernel("reduce", {sum.factor.has_value()}),
             groups(ceil_div(columns, abi::kElementwiseGroup), parts), make_block(push, abi::kReducePlaces),
             independent);
    if (parts == 1) return;

    add_parts(label + ": add parts", out, parts, columns, sum.out, sum.out_offset);
}

void PlanBuilder::add_parts(const std::string& label, std::size_t from, std::int64_t parts, std::int64_t columns,
                            std::size_t out, std::int64_t out_offset) {
    RowSum sum;
    sum.rows = parts;
    sum.width = columns;
    sum.in = {from, 0, columns, 0, 0};
    sum.out = out;
    sum.out_offset = out_offset;
    row_sum(label, sum);
}

void PlanBuilder::transpose(const std::string& label, std::size_t in, std::size_t out, std::int64_t rows,
                            std::int64_t columns, std::int64_t batches, bool independent) {
    abi::TransposePush push{};
    push.in_ = at(in, 0);
    push.out_ = at(out, 0);
    push.rows = u32(rows);
    push.columns = u32(columns);
    dispatch(label, kernel("transpose", {}), groups(ceil_div(rows * columns, abi::kElementwiseGroup), batches),
             make_block(push, abi::kTransposePlaces), independent);
}

}  // namespace vkrnn
