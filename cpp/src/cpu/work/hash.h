// A hash of memory, compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/work/kernel.h"
#include "vkrnn/fingerprint.h"

namespace vkrnn::cpu {

// Returns xxHash's XXH3_128bits of some bytes.
using HashFunction = Hash (*)(std::span<const std::byte> bytes);

// Returns the function for a target. All of them compute the same hash.
HashFunction find_hash(const Target& target);

}  // namespace vkrnn::cpu
