// Collects messages for a log: what users may want to know and no error says.
#pragma once

#include <string>

#include "vkrnn/device.h"

namespace vkrnn {

// Keeps a text for take_reports(), the first time that it is told. Thread-safe.
void report(Severity severity, std::string text);

}  // namespace vkrnn
