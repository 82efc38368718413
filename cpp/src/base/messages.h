// Parts of error messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vkrnn {

// Returns the beginning of messages about a call: "[lstm] " for the label "lstm" or "[lstm]"; nothing for an empty
// label.
std::string error_prefix(std::string_view label);

// Formats a number of bytes: "34.4 GiB (36,893,488,128 bytes)"; below 1 KiB just "12 bytes".
std::string bytes_text(std::uint64_t bytes);

}  // namespace vkrnn
