// Abandons driver objects that belong to another process.
#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <utility>

namespace vkrnn {

// Takes a value and never destroys it. Allocates no memory.
template <class T>
void abandon(T value) noexcept {
    alignas(T) std::array<std::byte, sizeof(T)> place;
    new (place.data()) T(std::move(value));
}

}  // namespace vkrnn
