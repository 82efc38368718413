// Tests how loops are divided among threads.
#include <gtest/gtest.h>

#include <cstdint>

#include "cpu/work/split.h"

namespace vkrnn::cpu {
namespace {

LoopShape shape_of(std::int64_t steps, std::int64_t rows, std::int64_t directions, std::int64_t units) {
    return {steps, rows, directions, (units + 7) / 8, 4, units, 8, 4, 1};
}

TEST(Split, AssignsGroupsToTeamsAndUnitsToMembers) {
    for (const std::int64_t rows : {1, 2, 7, 64})
        for (const std::int64_t units : {1, 8, 65, 512, 2048})
            for (const std::int64_t directions : {1, 2})
                for (const std::int64_t steps : {1, 100})
                    for (unsigned most = 1; most <= 16; ++most)
                        for (const bool contended : {false, true}) {
                            const LoopShape shape = shape_of(steps, rows, directions, units);
                            const Split split = choose_split(shape, most, contended);
                            ASSERT_GE(split.threads(), 1u);
                            ASSERT_LE(split.threads(), most);
                            ASSERT_LE(split.row_parts, rows) << "every part has rows";
                            ASSERT_LE(split.unit_parts, shape.vectors) << "every member has units";
                            ASSERT_LE(split.teams, directions * split.row_parts) << "every team has a group";
                            if (contended && units <= 65) {
                                ASSERT_EQ(split.unit_parts, 1u) << "a short step has no barriers";
                            }
                        }
}

TEST(Split, UsesThreadsForLongWork) {
    EXPECT_EQ(choose_split(shape_of(1, 1, 1, 8), 16, false).threads(), 1u);
    EXPECT_GT(choose_split(shape_of(100, 64, 1, 512), 16, false).threads(), 8u);
    EXPECT_GT(choose_split(shape_of(100, 1, 1, 1024), 4, false).unit_parts, 1u);
}

TEST(Split, SharesWeightsThatNoCacheHolds) {
    LoopShape small = shape_of(50, 64, 1, 64), large = shape_of(50, 64, 1, 2048);
    small.tile_rows = large.tile_rows = 4;
    EXPECT_EQ(choose_split(small, 2, false).row_parts, 2u);
    EXPECT_EQ(choose_split(large, 2, false).unit_parts, 2u) << "each thread loads half of the weights in every step";
    large.tile_rows = 0;
    EXPECT_EQ(choose_split(large, 2, false).row_parts, 2u);
}

TEST(Split, UsesThreadsForLongWorkOnlyUnderContention) {
    const LoopShape brief = shape_of(64, 8, 1, 128), long_one = shape_of(1000, 64, 1, 512);
    EXPECT_EQ(choose_split(brief, 2, false).threads(), 2u);
    EXPECT_EQ(choose_split(brief, 2, true).threads(), 1u);
    EXPECT_EQ(choose_split(long_one, 2, true).threads(), 2u);
}

TEST(Split, PartsCoverTheWholeOnce) {
    for (const std::int64_t count : {0, 1, 5, 64, 101})
        for (std::int64_t parts = 1; parts <= 16; ++parts) {
            std::int64_t next = 0;
            for (std::int64_t part = 0; part < parts; ++part) {
                const Range range = part_of(count, part, parts);
                ASSERT_EQ(range.begin, next);
                ASSERT_LE(range.end - range.begin, (count + parts - 1) / parts);
                next = range.end;
            }
            EXPECT_EQ(next, count);
        }
}

}  // namespace
}  // namespace vkrnn::cpu
