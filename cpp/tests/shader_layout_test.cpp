// Tests of the built kernels. They and C++ agree on the structs that they share: every member is on both sides at the
// same offset. Calls of functions do not nest too deeply.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "matrices/matrices_abi.h"
#include "portable/portable_abi.h"
#include "slices/slices_abi.h"
#include "spirv_layout.h"
#include "tiles/tiles_abi.h"
#include "vkrnn/device.h"
#include "vkrnn/shaders.h"

namespace vkrnn::test {

void PrintTo(const Layout& layout, std::ostream* out) {
    *out << layout.name;
    for (const Member& member : layout.members)
        *out << "\n    " << member.name << " at " << member.offset << ", " << member.bytes << " bytes";
}

namespace {

struct Struct {
    Layout layout;
    std::uint64_t bytes;  // with C++'s padding at the end
};

template <class Type, class... Members>
Struct layout(const char* name, Members... members) {
    return {{name, {members...}}, sizeof(Type)};
}

#define MEMBER(type, member) (Member{#member, offsetof(abi::type, member), sizeof(abi::type::member)})

// Every struct of the abi headers with the C++ offsets of all members.
const std::vector<Struct>& structs() {
    static const std::vector<Struct> kStructs{
        layout<abi::GemmPush>("GemmPush", MEMBER(GemmPush, a), MEMBER(GemmPush, b), MEMBER(GemmPush, c),
                              MEMBER(GemmPush, a_batch), MEMBER(GemmPush, b_batch), MEMBER(GemmPush, c_batch),
                              MEMBER(GemmPush, c_slab), MEMBER(GemmPush, m), MEMBER(GemmPush, n), MEMBER(GemmPush, k),
                              MEMBER(GemmPush, lda), MEMBER(GemmPush, ldb), MEMBER(GemmPush, ldc),
                              MEMBER(GemmPush, chunk), MEMBER(GemmPush, batches)),
        layout<abi::ReducePush>("ReducePush", MEMBER(ReducePush, in_), MEMBER(ReducePush, factor),
                                MEMBER(ReducePush, out_), MEMBER(ReducePush, rows), MEMBER(ReducePush, part),
                                MEMBER(ReducePush, width), MEMBER(ReducePush, gates), MEMBER(ReducePush, directions),
                                MEMBER(ReducePush, in_row), MEMBER(ReducePush, in_direction),
                                MEMBER(ReducePush, in_gate), MEMBER(ReducePush, factor_row),
                                MEMBER(ReducePush, factor_direction), MEMBER(ReducePush, factor_gate)),
        layout<abi::TransposePush>("TransposePush", MEMBER(TransposePush, in_), MEMBER(TransposePush, out_),
                                   MEMBER(TransposePush, rows), MEMBER(TransposePush, columns)),
        layout<abi::LastRowsPush>("LastRowsPush", MEMBER(LastRowsPush, in_), MEMBER(LastRowsPush, initial),
                                  MEMBER(LastRowsPush, out_), MEMBER(LastRowsPush, lengths), MEMBER(LastRowsPush, T),
                                  MEMBER(LastRowsPush, N), MEMBER(LastRowsPush, width),
                                  MEMBER(LastRowsPush, directions), MEMBER(LastRowsPush, state_row),
                                  MEMBER(LastRowsPush, state_direction)),
        layout<abi::CopyRowsPush>("CopyRowsPush", MEMBER(CopyRowsPush, in_), MEMBER(CopyRowsPush, out_),
                                  MEMBER(CopyRowsPush, count), MEMBER(CopyRowsPush, width),
                                  MEMBER(CopyRowsPush, in_row), MEMBER(CopyRowsPush, out_row)),
        layout<abi::CombinePush>("CombinePush", MEMBER(CombinePush, a), MEMBER(CombinePush, b),
                                 MEMBER(CombinePush, out_), MEMBER(CombinePush, count), MEMBER(CombinePush, limit),
                                 MEMBER(CombinePush, period), MEMBER(CombinePush, padding)),
        layout<abi::ConvertPush>("ConvertPush", MEMBER(ConvertPush, in_), MEMBER(ConvertPush, out_),
                                 MEMBER(ConvertPush, count), MEMBER(ConvertPush, padding)),
        layout<abi::Strides>("Strides", MEMBER(Strides, step), MEMBER(Strides, row), MEMBER(Strides, slot),
                             MEMBER(Strides, unit), MEMBER(Strides, part)),
        layout<abi::StepParams>(
            "StepParams", MEMBER(StepParams, at), MEMBER(StepParams, weights), MEMBER(StepParams, lengths),
            MEMBER(StepParams, strides), MEMBER(StepParams, weights_part), MEMBER(StepParams, T), MEMBER(StepParams, N),
            MEMBER(StepParams, H), MEMBER(StepParams, parts), MEMBER(StepParams, head_units), MEMBER(StepParams, depth),
            MEMBER(StepParams, weights_row), MEMBER(StepParams, first_depth)),
        layout<abi::StepPush>("StepPush", MEMBER(StepPush, params), MEMBER(StepPush, step), MEMBER(StepPush, steps)),
        layout<abi::TilePackPush>(
            "TilePackPush", MEMBER(TilePackPush, in_), MEMBER(TilePackPush, out_), MEMBER(TilePackPush, in_direction),
            MEMBER(TilePackPush, in_head), MEMBER(TilePackPush, in_k), MEMBER(TilePackPush, in_k_slot),
            MEMBER(TilePackPush, in_unit), MEMBER(TilePackPush, in_slot), MEMBER(TilePackPush, depth),
            MEMBER(TilePackPush, padded_depth), MEMBER(TilePackPush, H), MEMBER(TilePackPush, heads),
            MEMBER(TilePackPush, units), MEMBER(TilePackPush, columns), MEMBER(TilePackPush, tiles),
            MEMBER(TilePackPush, products), MEMBER(TilePackPush, gate_order)),
        layout<abi::SlicePackPush>(
            "SlicePackPush", MEMBER(SlicePackPush, in_), MEMBER(SlicePackPush, out_),
            MEMBER(SlicePackPush, in_direction), MEMBER(SlicePackPush, in_head), MEMBER(SlicePackPush, in_k),
            MEMBER(SlicePackPush, in_k_slot), MEMBER(SlicePackPush, in_unit), MEMBER(SlicePackPush, in_slot),
            MEMBER(SlicePackPush, depth), MEMBER(SlicePackPush, H), MEMBER(SlicePackPush, head_units),
            MEMBER(SlicePackPush, parts), MEMBER(SlicePackPush, runs), MEMBER(SlicePackPush, lanes),
            MEMBER(SlicePackPush, invocations), MEMBER(SlicePackPush, products), MEMBER(SlicePackPush, gate_order),
            MEMBER(SlicePackPush, units)),
        layout<abi::TablePush>("TablePush", MEMBER(TablePush, table)),
        layout<abi::AbsmaxPush>("AbsmaxPush", MEMBER(AbsmaxPush, in_), MEMBER(AbsmaxPush, out_),
                                MEMBER(AbsmaxPush, lengths), MEMBER(AbsmaxPush, count), MEMBER(AbsmaxPush, row),
                                MEMBER(AbsmaxPush, N), MEMBER(AbsmaxPush, first)),
        layout<abi::MatrixPackPush>(
            "MatrixPackPush", MEMBER(MatrixPackPush, in_), MEMBER(MatrixPackPush, out_), MEMBER(MatrixPackPush, table),
            MEMBER(MatrixPackPush, absmax), MEMBER(MatrixPackPush, in_batch), MEMBER(MatrixPackPush, in_head),
            MEMBER(MatrixPackPush, in_i), MEMBER(MatrixPackPush, in_k), MEMBER(MatrixPackPush, in_run),
            MEMBER(MatrixPackPush, in_slot), MEMBER(MatrixPackPush, out_batch), MEMBER(MatrixPackPush, i_count),
            MEMBER(MatrixPackPush, i_blocks), MEMBER(MatrixPackPush, run_length), MEMBER(MatrixPackPush, run_padded),
            MEMBER(MatrixPackPush, k_blocks), MEMBER(MatrixPackPush, units), MEMBER(MatrixPackPush, columns),
            MEMBER(MatrixPackPush, products), MEMBER(MatrixPackPush, gate_order), MEMBER(MatrixPackPush, heads)),
        layout<abi::MatrixProductPush>(
            "MatrixProductPush", MEMBER(MatrixProductPush, a), MEMBER(MatrixProductPush, b),
            MEMBER(MatrixProductPush, c), MEMBER(MatrixProductPush, a_absmax), MEMBER(MatrixProductPush, b_absmax),
            MEMBER(MatrixProductPush, a_batch), MEMBER(MatrixProductPush, b_batch), MEMBER(MatrixProductPush, c_batch),
            MEMBER(MatrixProductPush, c_slab), MEMBER(MatrixProductPush, m), MEMBER(MatrixProductPush, n),
            MEMBER(MatrixProductPush, ldc), MEMBER(MatrixProductPush, k_blocks), MEMBER(MatrixProductPush, chunk),
            MEMBER(MatrixProductPush, batches)),
    };
    return kStructs;
}

#undef MEMBER

const Struct* find(const std::string& name) {
    const auto found = std::ranges::find(structs(), name, [](const Struct& each) { return each.layout.name; });
    return found == structs().end() ? nullptr : &*found;
}

Module module_of(std::string_view kernel) { return Module(shader_code(kernel)); }

// Whether the kernels for matrix units were built. They need newer tools.
bool has_matrices() { return !shader_code("matrix_product").empty(); }

TEST(ShaderLayout, OfPushConstants) {
    for (const std::string_view kernel : shader_names()) {
        SCOPED_TRACE(kernel);
        const auto found = module_of(kernel).push_constants();
        ASSERT_TRUE(found);
        const Struct* const wanted = find(found->name);
        ASSERT_NE(wanted, nullptr) << found->name << " is not in this test's table";
        EXPECT_EQ(*found, wanted->layout);
    }
}

// NVIDIA's compiler (580.159) does not inline calls that nest more deeply than 7. What a slices kernel keeps in
// registers then lies in memory, and each of its steps takes 4 times as long. The tiles of an LSTM and a GRU nest calls
// 8 deep.
TEST(ShaderCalls, AreInlined) {
    for (const std::string_view kernel : shader_names()) {
        const bool keeps_state = kernel.find("slices") != std::string_view::npos;
        EXPECT_LE(module_of(kernel).call_depth(), keeps_state ? 7 : 8) << kernel;
    }
}

// StepParams and its members, which kernels read through addresses, have the names of step_abi.h, too.
TEST(ShaderLayout, OfEveryStruct) {
    std::set<std::string> met;
    for (const std::string_view kernel : shader_names()) {
        SCOPED_TRACE(kernel);
        for (const Layout& found : module_of(kernel).layouts()) {
            const Struct* const wanted = find(found.name);
            if (wanted == nullptr) continue;  // a struct of the kernel alone, such as Params or Scalar
            met.insert(found.name);
            EXPECT_EQ(found, wanted->layout);
        }
    }
    for (const Struct& each : structs()) {
        const std::string& name = each.layout.name;
        const bool built =
            has_matrices() || (!name.starts_with("Matrix") && name != "TablePush" && name != "AbsmaxPush");
        EXPECT_EQ(met.contains(name), built) << name;
    }
}

// A C++ member that is missing in the table leaves a gap between or after the others.
TEST(ShaderLayout, TableIsComplete) {
    for (const Struct& each : structs()) {
        SCOPED_TRACE(each.layout.name);
        std::uint64_t end = 0;
        for (const Member& member : each.layout.members) {
            EXPECT_EQ(member.offset, end) << "before " << member.name;
            end = member.offset + member.bytes;
        }
        EXPECT_EQ((end + 7) / 8 * 8, each.bytes) << "at the end";  // structs begin with 8-byte members
    }
}

}  // namespace
}  // namespace vkrnn::test
