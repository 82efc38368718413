// What makes Mesa's CPU driver faster and is set from outside it. Nothing here does anything where that driver is not.
#pragma once

namespace vkrnn::vk {

// Before the instance is made. What the user has set stays:
//   LP_NATIVE_VECTOR_WIDTH=512   where the processor has vectors of that width;
//   LP_NUM_THREADS=0             where there are no more than two processors: the driver then works in the thread that
//                                submits. Waking its threads for every dispatch takes longer than a second one saves.
void set_up_driver();

// After a device is made: one processor for each of the driver's compute threads, of those that the process may use.
// The scheduler may leave two of them on one processor for a second after a long compilation.
void pin_workers();

}  // namespace vkrnn::vk
