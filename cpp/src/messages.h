// The wording of errors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vkrnn {

// Returns the beginning of messages about a call: "[lstm] " for "lstm" and for "[lstm]"; nothing where the label is
// empty.
std::string error_prefix(std::string_view label);

// "34.4 GiB (36,893,488,128 bytes)"; below 1 KiB just "12 bytes".
std::string bytes_text(std::uint64_t bytes);

}  // namespace vkrnn
