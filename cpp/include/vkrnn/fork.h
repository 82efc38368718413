// Hooks to run around fork().
#pragma once

namespace vkrnn {

// hold_before_fork() waits until the core is doing nothing that a child process would find half done. It prevents new
// work until release_after_fork(), which is called in the parent and in the child. The core's pthread_atfork handlers
// do the same at each fork. However, handlers that a driver registered later run first, and may take a lock that a
// thread inside the driver is waiting for. Callers that can should therefore call hold_before_fork() before the fork
// begins.
void hold_before_fork();
void release_after_fork();

}  // namespace vkrnn
