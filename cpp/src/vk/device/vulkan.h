// Includes Vulkan for src/vk, and only for it: the RAII classes with a dynamic loader, so that nothing links against
// libvulkan.
#pragma once

#define VK_NO_PROTOTYPES
#define VULKAN_HPP_NO_CONSTRUCTORS  // aggregates allow designated initializers and compile faster
#define VULKAN_HPP_NO_SMART_HANDLE
#define VULKAN_HPP_NO_SPACESHIP_OPERATOR
#define VULKAN_HPP_ASSERT(x) static_cast<void>(0)  // never abort the process
#define VULKAN_HPP_ASSERT_ON_RESULT(x) static_cast<void>(0)

#include <vulkan/vulkan_raii.hpp>

namespace vkrnn::vk {
// Without this, `vk::Buffer` in this namespace would mean vkrnn::vk::Buffer; with it, Vulkan-Hpp's is found. So no
// class here may have the name of one in Vulkan-Hpp.
using namespace ::vk;  // NOLINT(google-build-using-namespace)
}  // namespace vkrnn::vk
