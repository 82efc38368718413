// What makes Mesa's CPU driver faster and is set from outside it. Nothing here does anything where that driver is not.
#pragma once

namespace vkrnn::vk {

// Before the instance is made: vectors as wide as the processor's, unless the user has set LP_NATIVE_VECTOR_WIDTH.
void widen_vectors();

// After a device is made: one processor for each of the driver's compute threads, of those that the process may use.
// The scheduler may leave two of them on one processor for a second after a long compilation.
void pin_workers();

}  // namespace vkrnn::vk
