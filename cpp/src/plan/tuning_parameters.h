// Tuning parameters of strategies. A strategy declares them once: as members of a struct, and as rows of the table that
// the struct's parameters() returns. The map of values by name, the checks of a caller's values and their error
// messages are derived from the table.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "vkrnn/profile.h"
#include "vkrnn/strategy_choice.h"

namespace vkrnn {

// The values that a parameter can have.
struct Range {
    static constexpr std::uint32_t kNoLimit = std::numeric_limits<std::uint32_t>::max();

    std::uint32_t least = 0, most = kNoLimit;
    std::uint32_t multiple_of = 1;
    bool power_of_two = false;
    std::string_view of_what = {};  // in messages: text before the limiting number
    std::string_view beside = {};   // in messages: text at the end, which says what else the range depends on

    [[nodiscard]] bool contains(std::uint32_t value) const;
};

inline constexpr std::string_view kSubgroup = "the subgroup's ";  // as Range::of_what

// Describes a range for an error message: "a power of two up to the subgroup's 8".
std::string describe(const Range& range);

// A row of the table of a strategy whose parameters are members of a `Shape`.
template <class Shape>
struct TuningParameter {
    // Returns the range on a device, given the values of the rows above.
    using RangeFunction = Range (*)(const Profile& profile, const Shape& shape);

    std::string_view name;  // by which a caller fixes it
    std::uint32_t Shape::*member;
    std::variant<Range, RangeFunction> range;

    [[nodiscard]] Range range_on(const Profile& profile, const Shape& shape) const {
        const auto* const function = std::get_if<RangeFunction>(&range);
        return function != nullptr ? (*function)(profile, shape) : std::get<Range>(range);
    }
};

// Throws ValueError if a parameter's value is out of its range.
void check_parameter(std::string_view name, const Range& range, std::uint32_t value);

// Returns a shape's values by name.
template <class Shape>
Parameters parameters_of(const Shape& shape) {
    Parameters parameters;
    for (const TuningParameter<Shape>& each : Shape::parameters()) parameters.emplace(each.name, shape.*each.member);
    return parameters;
}

// Returns the shape with the wanted values in place of its own. Values for other strategies are ignored.
template <class Shape>
Shape with_parameters(Shape shape, const Parameters& wanted) {
    if (wanted.empty()) return shape;
    for (const TuningParameter<Shape>& each : Shape::parameters())
        if (const auto found = wanted.find(each.name); found != wanted.end()) shape.*each.member = found->second;
    return shape;
}

// Returns the same as with_parameters(). Throws ValueError if a value is out of its range on the device.
template <class Shape>
Shape with_checked_parameters(const Shape& usual, const Parameters& wanted, const Profile& profile) {
    const Shape shape = with_parameters(usual, wanted);
    for (const TuningParameter<Shape>& each : Shape::parameters())
        check_parameter(each.name, each.range_on(profile, shape), shape.*each.member);
    return shape;
}

}  // namespace vkrnn
