// How much the tests do, as in tests/support/scale.py: everything if VKRNN_TESTS=full; otherwise, also in
// .ci/run, long tests are shortened.
#pragma once

#include <cstdlib>
#include <string_view>

namespace vkrnn::test {

inline bool full() {
    const char* const wanted = std::getenv("VKRNN_TESTS");
    return wanted != nullptr && std::string_view(wanted) == "full";
}

}  // namespace vkrnn::test
