// Which buffers of a plan share memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cpu_plans.h"
#include "plan/scratch.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

constexpr std::uint64_t kAlignment = 64, kNoLimit = ~std::uint64_t{0};

Profile with_matrix_units() {
    Profile profile;
    profile.name = "a GPU";
    profile.type = DeviceType::discrete_gpu;
    profile.subgroup_size = 32;
    profile.max_workgroup_invocations = profile.max_workgroup_size_x = 1024;
    profile.registers = 65536;
    profile.max_shared_memory = 48 << 10;
    profile.max_allocation = std::uint64_t{1} << 32;
    profile.matrix_side = 16;
    profile.float64 = true;
    return profile;
}

std::vector<std::size_t> scratch_of(const Plan& plan) {
    std::vector<std::size_t> buffers;
    for (std::size_t i = 0; i < plan.buffers.size(); ++i)
        if (const Role role = plan.buffers[i].role; role != Role::input && role != Role::result) buffers.push_back(i);
    return buffers;
}

// Adds the buffers that a block refers to, and those that constants among them refer to.
void add_buffers(const Plan& plan, const Block& block, std::vector<bool>& used) {
    for (std::size_t i = 0; i < block.references; ++i) {
        const std::size_t buffer = referenced_buffer(reference_at(block, i));
        if (buffer >= plan.buffers.size()) continue;
        used[buffer] = true;
        if (plan.buffers[buffer].role == Role::constant) add_buffers(plan, plan.buffers[buffer].contents, used);
    }
}

// Returns, for each group of steps that may run at the same time, the buffers that they use. Constants are filled, and
// buffers may be cleared, before all others.
std::vector<std::vector<bool>> users_of(const Plan& plan) {
    std::vector<std::vector<bool>> groups{std::vector<bool>(plan.buffers.size())};
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) groups[0][i] = plan.buffers[i].role == Role::constant;
    for (const Step& step : plan.steps) {
        if (const auto* const clear = std::get_if<Clear>(&step)) {
            groups[0][clear->buffer] = groups.back()[clear->buffer] = true;
        } else if (const auto* const dispatch = std::get_if<Dispatch>(&step)) {
            if (dispatch->after) groups.emplace_back(plan.buffers.size());
            add_buffers(plan, dispatch->push, groups.back());
        } else {
            groups.emplace_back(plan.buffers.size());
            for (const Dispatch& each : std::get<Loop>(step).body) add_buffers(plan, each.push, groups.back());
        }
    }
    return groups;
}

// Returns whether a buffer is used before, and again after or while another one is used.
bool is_needed_across(const std::vector<std::vector<bool>>& groups, std::size_t buffer, std::size_t other) {
    bool before = false, between = false;
    for (const std::vector<bool>& group : groups) {
        before = before || group[buffer];
        between = between || (before && group[other]);
        if (between && group[buffer]) return true;
    }
    return false;
}

void expect_sound(const Plan& plan, const ScratchLayout& layout, const std::vector<std::size_t>& buffers) {
    const std::vector<std::vector<bool>> groups = users_of(plan);
    for (std::size_t a = 0; a < buffers.size(); ++a) {
        const auto [piece, begin] = layout.spots[a];
        const std::uint64_t end = begin + plan.buffers[buffers[a]].bytes;
        EXPECT_EQ(begin % kAlignment, 0u);
        EXPECT_LE(end, layout.pieces.at(piece));
        for (std::size_t b = 0; b < a; ++b) {
            const auto [other_piece, other] = layout.spots[b];
            if (piece != other_piece || end <= other || other + plan.buffers[buffers[b]].bytes <= begin) continue;
            EXPECT_FALSE(is_needed_across(groups, buffers[a], buffers[b]) ||
                         is_needed_across(groups, buffers[b], buffers[a]))
                << plan.buffers[buffers[a]].name << " and " << plan.buffers[buffers[b]].name;
        }
    }
}

// Buffers that are cleared come first, one after the other, and so do the steps that clear them.
void expect_cleared_together(const Plan& plan, const ScratchLayout& layout, const std::vector<std::size_t>& buffers) {
    std::vector<bool> is_cleared(plan.buffers.size());
    bool first = true;
    for (const Step& step : plan.steps) {
        const auto* const clear = std::get_if<Clear>(&step);
        if (clear != nullptr && plan.buffers[clear->buffer].role == Role::scratch) {
            EXPECT_TRUE(first) << plan.buffers[clear->buffer].name;
            is_cleared[clear->buffer] = true;
        }
        first = first && clear != nullptr;
    }
    std::map<std::uint64_t, std::uint64_t> bytes_at;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        if (!is_cleared[buffers[i]]) continue;
        EXPECT_EQ(layout.spots[i].piece, 0u);
        bytes_at[layout.spots[i].offset] = plan.buffers[buffers[i]].bytes;
    }
    std::uint64_t end = 0;
    for (const auto& [begin, bytes] : bytes_at) {
        EXPECT_EQ(begin, end);
        end = (begin + bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
}

std::vector<Spec> calls() {
    std::vector<Spec> calls;
    for (const cpu::Shape shape : {cpu::Shape{50, 32, 40, 96}, {2000, 1, 40, 96}})
        for (const Spec& forward : cpu::all_cells(shape))
            for (Spec spec : {forward, cpu::gradients_of(forward)})
                for (const Dtype dtype : {Dtype::float32, Dtype::float16}) {
                    spec.dtype = dtype;
                    calls.push_back(spec);
                }
    return calls;
}

TEST(Scratch, IsSharedOnlyByBuffersThatAreNotNeededTogether) {
    std::map<std::string, int> plans;
    for (const Spec& spec : calls()) {
        for (const std::string schedule : {"native", "steps", "tiles", "slices", "split", "matrices", "persistent"}) {
            SCOPED_TRACE(cpu::name_of_case(spec) + ' ' + schedule);
            const bool native = schedule == "native";
            const Profile profile = native ? cpu::profile_of(cpu::targets().front()) : with_matrix_units();
            Plan plan;
            try {
                plan = make_plan(spec, profile, {native ? "" : schedule, "", {}});
            } catch (const NotImplementedError&) {
                continue;  // the strategy does not fit the call
            }
            ++plans[schedule];
            const std::vector<std::size_t> buffers = scratch_of(plan);
            const ScratchLayout layout = place_scratch(plan, buffers, kAlignment, kNoLimit);
            expect_sound(plan, layout, buffers);
            expect_cleared_together(plan, layout, buffers);
            std::uint64_t apart = 0;
            for (const std::size_t buffer : buffers) apart += plan.buffers[buffer].bytes;
            EXPECT_LE(plan.peak_bytes(), plan.bytes());
            // Float32 copies of results take the place of those of arguments.
            if (spec.gradients && spec.dtype == Dtype::float16) {
                EXPECT_LT(layout.bytes(), apart * 95 / 100);
            }
        }
    }
    EXPECT_EQ(plans.size(), 7u) << "every strategy fits a call";
}

TEST(Scratch, IsSplitIntoPiecesOfTheLargestAllocation) {
    constexpr std::uint64_t kLimit = 1 << 20;
    for (const Spec& spec : calls()) {
        SCOPED_TRACE(cpu::name_of_case(spec));
        const Plan plan = make_plan(spec, with_matrix_units(), {});
        const std::vector<std::size_t> buffers = scratch_of(plan);
        const ScratchLayout layout = place_scratch(plan, buffers, kAlignment, kLimit);
        expect_sound(plan, layout, buffers);
        for (std::size_t i = 0; i < layout.pieces.size(); ++i) {
            const auto alone = [&](std::size_t a) {
                return layout.spots[a].piece == i && plan.buffers[buffers[a]].bytes > kLimit;
            };
            bool is_alone = false;
            for (std::size_t a = 0; a < buffers.size(); ++a) is_alone = is_alone || alone(a);
            EXPECT_TRUE(is_alone || layout.pieces[i] <= kLimit) << layout.pieces[i];
        }
    }
}

// The first dispatch need not wait, and reaches a buffer through a constant.
TEST(Scratch, IsNotSharedWithABufferThatAConstantRefersTo) {
    constexpr std::uint64_t kBytes = 1 << 20;
    struct Push {
        BufferReference buffer;
    };
    const auto referring_to = [](std::size_t buffer) { return make_block(Push{reference_to(buffer, 0)}); };
    Plan plan;
    plan.buffers = {{"parameters", Role::constant, 8, referring_to(1)},
                    {"found through it", Role::scratch, kBytes},
                    {"used beside it", Role::scratch, kBytes},
                    {"used later", Role::scratch, kBytes}};
    plan.steps = {Dispatch{.label = "first", .push = referring_to(0), .after = false},
                  Dispatch{.label = "second", .push = referring_to(2), .after = false},
                  Dispatch{.label = "third", .push = referring_to(3)}};
    const std::vector<std::size_t> buffers{0, 1, 2, 3};
    const ScratchLayout layout = place_scratch(plan, buffers, kAlignment, kNoLimit);
    expect_sound(plan, layout, buffers);
    EXPECT_NE(layout.spots[1].offset, layout.spots[2].offset);
    EXPECT_EQ(layout.bytes(), 2 * kBytes + kAlignment);
}

TEST(Scratch, OfSizesThatNoDeviceHasSaturates) {
    Plan plan;
    plan.buffers = {{"a", Role::scratch, ~std::uint64_t{0}}, {"b", Role::scratch, ~std::uint64_t{0} / 2}, {"c"}};
    const std::vector<std::size_t> buffers{0, 1, 2};
    EXPECT_GE(place_scratch(plan, buffers, kAlignment, kNoLimit).bytes(), ~std::uint64_t{0} / 2);
}

}  // namespace
}  // namespace vkrnn
