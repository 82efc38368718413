// Forks, on systems that have them.
#pragma once

#ifndef _WIN32
#define VKRNN_HAS_FORKS

#include <sys/wait.h>
#include <unistd.h>

namespace vkrnn::test {

// Seconds after which a forked child is taken to hang, on any machine. Pass it to alarm() in the child.
constexpr unsigned kHangs = 600;

}  // namespace vkrnn::test
#endif
