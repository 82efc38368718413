#include "tuning_parameters.h"

#include <bit>

#include "vkrnn/error.h"

namespace vkrnn {

bool Range::contains(std::uint32_t value) const {
    return value >= least && value <= most && value % multiple_of == 0 && (!power_of_two || std::has_single_bit(value));
}

std::string describe(const Range& range) {
    const std::string of_what(range.of_what), most = std::to_string(range.most);
    const bool limited = range.most != Range::kNoLimit;
    std::string text;
    if (range.power_of_two)
        text = "a power of two" + (limited ? " up to " + of_what + most : "");
    else if (range.multiple_of > 1)
        text = "a multiple of " + of_what + std::to_string(range.multiple_of) + (limited ? " up to " + most : "");
    else if (limited)
        text = std::to_string(range.least) + (range.most == range.least + 1 ? " or " : " to ") + most;
    else
        text = std::to_string(range.least) + " or more";
    return text + std::string(range.beside);
}

void check_parameter(std::string_view name, const Range& range, std::uint32_t value) {
    if (!range.contains(value))
        throw ValueError("[Device] " + std::string(name) + ": expected " + describe(range) + ", got " +
                         std::to_string(value));
}

}  // namespace vkrnn
