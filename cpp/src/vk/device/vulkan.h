// Includes Vulkan for all of src/vk, and for nobody else: the RAII classes with their own dynamic loader, so that
// nothing links against libvulkan.
#pragma once

#define VK_NO_PROTOTYPES
#define VULKAN_HPP_NO_CONSTRUCTORS  // plain aggregates: designated initializers, and quicker to compile
#define VULKAN_HPP_NO_SMART_HANDLE
#define VULKAN_HPP_NO_SPACESHIP_OPERATOR
#define VULKAN_HPP_ASSERT(x) static_cast<void>(0)  // the process never aborts
#define VULKAN_HPP_ASSERT_ON_RESULT(x) static_cast<void>(0)

#include <vulkan/vulkan_raii.hpp>

namespace vkrnn::vk {
// In this namespace `vk::Buffer` means vkrnn::vk::Buffer; this makes it Vulkan-Hpp's. So no class here may have the
// name of one in Vulkan-Hpp.
using namespace ::vk;  // NOLINT(google-build-using-namespace)
}  // namespace vkrnn::vk
