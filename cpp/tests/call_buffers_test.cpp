// Which prepacked copies a call uses and makes, what it places in scratch memory, and which operands it refuses.
#include "run/call_buffers.h"

#include <gtest/gtest.h>

#include <string>

namespace vkrnn {
namespace {

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

struct Copy {
    std::uint64_t version;
};

class Array final : public Storage {
public:
    explicit Array(std::uint64_t bytes) : Storage(bytes, nullptr) {}
    [[nodiscard]] std::optional<std::uint64_t> prepacked_version() const { return version(); }
    [[nodiscard]] PrepackedCopies<Copy>& copies() { return copies_; }

private:
    PrepackedCopies<Copy> copies_;
};

using Buffers = CallBuffers<Array, Copy>;
enum : std::size_t { kZeros, kWeight, kPrepacked, kOptional, kConstant, kScratch, kOutput };

Plan a_plan() {
    Plan plan;
    plan.buffers = {{.name = "zeros", .role = Role::scratch, .bytes = 8},
                    {.name = "weight", .role = Role::input, .bytes = 16},
                    {.name = "prepacked", .role = Role::prepacked, .bytes = 32, .prepacking = {kWeight, {1}}},
                    {.name = "optional", .role = Role::prepacked, .bytes = 32, .prepacking = {kWeight, {2}, true}},
                    {.name = "constant", .role = Role::constant, .bytes = 8},
                    {.name = "scratch", .role = Role::scratch, .bytes = 8},
                    {.name = "output", .role = Role::result, .bytes = 4}};
    plan.inputs = {{Argument::recurrent_weight, kWeight}};
    plan.results = {kOutput};
    return plan;
}

using Indices = std::vector<std::size_t>;

// What a call did with the plan's buffers, and how many copies it made, and dropped for these.
struct Bound {
    Indices scratch, full;
    std::size_t made = 0, dropped = 0;
    bool operator==(const Bound&) const = default;
};

// Binds a call's buffers as a back end does.
Bound bind(const Plan& plan, const InputLocation& weight) {
    Bound bound;
    Buffers buffers(plan);
    buffers.find_prepacked(std::span(&weight, 1));
    buffers.make_prepacked([&](std::uint64_t bytes, std::uint64_t version) {
        EXPECT_EQ(bytes, 32u);
        ++bound.made;
        return std::make_shared<const Copy>(Copy{version});
    });
    EXPECT_EQ(buffers.has_new_copies(), bound.made != 0);
    for (const auto& each : buffers.prepacked()) EXPECT_EQ(each.copy->version, weight.storage->version());
    buffers.lay_out(64, kNoLimit, [](std::size_t buffer) { return buffer == kZeros || buffer == kConstant; });
    EXPECT_EQ(buffers.layout().spots.size(), buffers.scratch().size());
    bound.scratch.assign(buffers.scratch().begin(), buffers.scratch().end());
    bound.full.assign(buffers.full().begin(), buffers.full().end());
    bound.dropped = buffers.keep_prepacked().size();
    return bound;
}

TEST(CallBuffers, KeepPrepackedCopiesOfAnArrayUntilItChanges) {
    const Plan plan = a_plan();
    const auto array = std::make_shared<Array>(64);
    for (std::size_t dropped : {0, 2}) {
        EXPECT_EQ(bind(plan, {.storage = array}), (Bound{{kScratch}, {}, 2, dropped}));
        EXPECT_EQ(bind(plan, {.storage = array}), (Bound{{kScratch}, {kPrepacked, kOptional}, 0, 0}));
        EXPECT_EQ(bind(plan, {.storage = array, .offset = 16}), (Bound{{kScratch}, {}, 2, dropped}))
            << "other elements";
        array->changed();
    }
}

TEST(CallBuffers, PackForOneCallWhatNoArrayCanKeep) {
    const Plan plan = a_plan();
    const auto array = std::make_shared<Array>(64);
    const HostView view(array);  // the array may change unnoticed
    // Kernels can do without the optional copy.
    for (const InputLocation& weight : {InputLocation{.host = &plan}, InputLocation{.storage = array}})
        EXPECT_EQ(bind(plan, weight), (Bound{{kPrepacked, kScratch}, {kOptional}, 0, 0}));
}

TEST(CallBuffers, PlaceEverythingThatIsNotElsewhere) {
    const Plan plan = a_plan();
    Buffers buffers(plan);
    buffers.find_prepacked(std::vector<InputLocation>(1));
    buffers.lay_out(64, kNoLimit, [](std::size_t /*buffer*/) { return false; });
    EXPECT_EQ(Indices(buffers.scratch().begin(), buffers.scratch().end()),
              (Indices{kZeros, kPrepacked, kConstant, kScratch}));
    EXPECT_EQ(buffers.layout().bytes(), 4 * 64u);
}

std::string error_of(const Plan& plan, const std::vector<InputLocation>& inputs,
                     const std::vector<ResultLocation>& results) {
    try {
        check_operands(plan, inputs, results);
    } catch (const std::logic_error& error) {
        return error.what();
    }
    return {};
}

TEST(Operands, FitTheirPlan) {
    const Plan plan = a_plan();
    const auto array = std::make_shared<Array>(20);
    EXPECT_EQ(error_of(plan, {{.storage = array, .offset = 4}}, {{.storage = array, .offset = 16}}), "");
    EXPECT_EQ(error_of(plan, {{}}, {{}}), "");
    EXPECT_EQ(error_of(plan, {}, {{}}), "the arrays do not match the plan");
    EXPECT_EQ(error_of(plan, {{}}, {{}, {}}), "the arrays do not match the plan");
    EXPECT_EQ(error_of(plan, {{.storage = array, .offset = 5}}, {{}}), "a tensor extends beyond its storage");
    EXPECT_EQ(error_of(plan, {{}}, {{.storage = array, .offset = 21}}), "a tensor extends beyond its storage");
    Plan wrong = plan;
    wrong.results = {kScratch};
    EXPECT_EQ(error_of(wrong, {{}}, {{}}), "the plan has no buffer of that role for an input or result");
}

TEST(Operands, SuitKernelsIfTheyAreAligned) {
    EXPECT_TRUE(suits_kernels(32, 16));
    EXPECT_FALSE(suits_kernels(40, 16));
    EXPECT_TRUE(suits_kernels(32, 16, 8));
    EXPECT_FALSE(suits_kernels(32, 16, 6)) << "three elements of a 16-bit type";
}

}  // namespace
}  // namespace vkrnn
