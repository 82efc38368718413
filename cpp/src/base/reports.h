// Collects messages for a log that are not errors.
#pragma once

#include <string>

#include "vkrnn/device.h"

namespace vkrnn {

// Adds a text to what take_reports() returns, unless it was reported before. Thread-safe.
void report(Severity severity, std::string text);

}  // namespace vkrnn
