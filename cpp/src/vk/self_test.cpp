#include "self_test.h"

#include <numeric>
#include <vector>

#include "abi.h"
#include "environment.h"

namespace vkrnn::vk {
namespace {

// Every workgroup number, every subgroup of a workgroup and every row of a tile takes part, and there are more
// subgroups than store the tile. A kernel with loops has one block of the whole depth. Tile and depth are as small as
// can be, for the time it takes to compile. The numbers are small integers, so sums are exact in any order. There are
// as many workgroups as helpers of the device take a part of: see team.h.
constexpr std::uint32_t kRows = 4, kGroups = 2, kGroupsInZ = 4;
constexpr std::uint32_t kM = kRows * kGroups * kGroupsInZ;

struct Blocks {
    std::uint32_t count, depth;
    std::uint32_t k() const { return count * depth; }
};
Blocks blocks_of(bool loops) { return loops ? Blocks{1, 48} : Blocks{5, 8}; }

float a_at(std::uint32_t m, std::uint32_t k) { return static_cast<float>((m * 7 + k * 3) % 11) - 5; }
float b_at(std::uint32_t k, std::uint32_t n) { return static_cast<float>((k * 5 + n * 13) % 17) - 8; }

Plan product_plan(const std::string& shader, std::uint32_t lanes, bool loops) {
    const std::uint32_t width = 2 * lanes, n = width * kGroups;
    const Blocks blocks = blocks_of(loops);
    const auto bytes = [](std::uint32_t elements) { return static_cast<std::uint32_t>(sizeof(float)) * elements; };
    Plan plan;
    plan.buffers = {{"a", Role::input, bytes(kM * blocks.k()), {}},
                    {"b", Role::input, bytes(blocks.k() * n), {}},
                    {"c_in", Role::input, bytes(n), {}},
                    {"c", Role::result, bytes(kM * n), {}}};
    plan.inputs = {{Argument::source, 0}, {Argument::input_weight, 1}, {Argument::bias, 2}};
    plan.results = {3};
    plan.kernels = {{shader, {lanes, blocks.count, kRows, 1, blocks.depth, 0, loops ? 0u : 1u, width}}};
    abi::BroadcastGemmPush push{};
    push.a = place(0, 0);
    push.b = place(1, 0);
    push.c_in = place(2, 0);
    push.c = place(3, 0) | (loops ? 0 : kInWindow);
    push.lda = blocks.k();
    push.ldc = n;
    push.panel = bytes(blocks.k() * width);
    push.c_in_panel = bytes(width);
    push.a_z = bytes(kGroups * kRows * blocks.k());
    push.c_z = bytes(kGroups * kRows * n);
    std::iota(std::begin(push.table), std::end(push.table), 0u);
    plan.steps = {Dispatch{
        "self-test", 0, {kGroups, kGroups, kGroupsInZ}, make_block(push, abi::kBroadcastGemmPlaces), true, {}}};
    if (!loops) {
        auto& windows = std::get<Dispatch>(plan.steps.front()).windows;
        windows.assign(abi::kWindows, kNoBuffer);
        windows[abi::kProductWindow] = 3;
    }
    return plan;
}

}  // namespace

bool broadcasts_right(Device& device) {
    const bool loops = device.flavour().loops();
    const std::string shader = loops ? "gemm_broadcast_loops" : "gemm_broadcast";
    if (is_on("VKRNN_FAIL_SELF_TEST") ||
        shader_code(shader).empty()) {  // the layer's own tests come without the package's shaders
        return false;
    }
    const std::uint32_t lanes = device.profile().subgroup_size, width = 2 * lanes, n = width * kGroups;
    const std::uint32_t depth = blocks_of(loops).k();
    std::vector<float> a(std::size_t{kM} * depth), b(std::size_t{depth} * n), start(n), c(std::size_t{kM} * n);
    for (std::uint32_t i = 0; i < kM * depth; ++i) {
        a[i] = a_at(i / depth, i % depth);
    }
    for (std::uint32_t k = 0; k < depth; ++k) {
        for (std::uint32_t j = 0; j < n; ++j) {
            b[(j / width * depth + k) * width + j % width] = b_at(k, j);
        }
    }
    std::iota(start.begin(), start.end(), 1.0f);
    const InputOperand inputs[] = {{a.data()}, {b.data()}, {start.data()}};
    const ResultOperand results[] = {{c.data()}};
    device.run(std::make_shared<const Plan>(product_plan(shader, lanes, loops)), inputs, results, true, "self-test",
               {});
    for (std::uint32_t m = 0; m < kM; ++m) {
        for (std::uint32_t j = 0; j < n; ++j) {
            float sum = start[j];
            for (std::uint32_t k = 0; k < depth; ++k) {
                sum += a_at(m, k) * b_at(k, j);
            }
            if (c[m * n + j] != sum) {
                return false;
            }
        }
    }
    return true;
}

}  // namespace vkrnn::vk
