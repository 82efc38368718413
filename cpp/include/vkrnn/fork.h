// What a thread does that is about to fork.
#pragma once

namespace vkrnn {

// hold_before_fork() waits until nothing is under way in the core that a forked process would find half done, and keeps
// others from beginning it, until release_after_fork() in this process and in the new one. The C library's handlers do
// the same at each fork. But those that a driver registered later come first, and may take a lock that a thread inside
// the driver waits for: whoever can should hold before the fork begins.
void hold_before_fork();
void release_after_fork();

}  // namespace vkrnn
