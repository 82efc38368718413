// The one way in which the files of this folder include Vulkan: the RAII classes with their own dynamic loader, so that
// nothing links against libvulkan. Private to src/vk.
#pragma once

#define VK_NO_PROTOTYPES
#define VULKAN_HPP_NO_CONSTRUCTORS  // plain aggregates: designated initializers, and quicker to compile
#define VULKAN_HPP_NO_SMART_HANDLE
#define VULKAN_HPP_NO_SPACESHIP_OPERATOR
#define VULKAN_HPP_ASSERT(x) static_cast<void>(0)  // the process never aborts
#define VULKAN_HPP_ASSERT_ON_RESULT(x) static_cast<void>(0)

#include <vulkan/vulkan_raii.hpp>

namespace vkrnn::vk {
// Within this namespace `vk::Buffer` is looked up here first; this makes it find Vulkan-Hpp's. The price: no class here
// may have the name of one of Vulkan-Hpp's.
using namespace ::vk;  // NOLINT(google-build-using-namespace)
}  // namespace vkrnn::vk
