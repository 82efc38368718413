// Hooks to run around fork().
#pragma once

namespace vkrnn {

// hold_before_fork() waits until no thread of the core is inside a driver, and keeps other threads out of drivers until
// release_after_fork(), which is called in the parent and in the child. The core's pthread_atfork handlers do the same
// at each fork, and hold what the child must not find half done. However, handlers that a driver registered later run
// first, and may take a lock that a thread inside the driver is waiting for. Callers that can should therefore call
// hold_before_fork() before the fork begins. Meanwhile the calling thread may still use the core.
void hold_before_fork();
void release_after_fork();

}  // namespace vkrnn
