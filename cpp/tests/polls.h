// Polls for tests, which do not depend on how long work takes.
#pragma once

#include "vkrnn/poll_interval.h"

namespace vkrnn::test {

// Lets calls poll after each piece of work during its lifetime.
class PollsAlways {
public:
    PollsAlways() { poll_interval = std::chrono::nanoseconds(0); }
    ~PollsAlways() { poll_interval = kPollInterval; }
    PollsAlways(const PollsAlways&) = delete;
    PollsAlways& operator=(const PollsAlways&) = delete;
};

}  // namespace vkrnn::test
