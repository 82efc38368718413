// What makes Mesa's CPU driver faster and is set from outside it. Nothing here does anything where that driver is not.
#pragma once

namespace vkrnn::vk {

// Before the instance is made: LP_NUM_THREADS=0 where the user has set LP_NATIVE_VECTOR_WIDTH=512 but no threads, and
// there are no more than two processors. The driver then works in the thread that submits: waking its threads for every
// dispatch of the broadcast flavour takes longer than a second one saves. (The width is the user's to set: at 512 the
// driver of Mesa 26.2 aborts, and it is too early to know which driver there is.)
void set_up_driver();

// After a device is made: one processor for each of the driver's compute threads, of those that the process may use.
// The scheduler may leave two of them on one processor for a second after a long compilation.
void pin_workers();

}  // namespace vkrnn::vk
