#pragma once

namespace vkrnn {

// Returns the id of this process. Devices do not survive a fork, so a call asks for it a dozen times.
long process_id();

}  // namespace vkrnn
