// llvmpipe as a driver like MoltenVK, which implements a subset of Vulkan: its devices are GPUs that list
// VK_KHR_portability_subset and cannot be opened without it. They lack 16-bit storage. LLVMPIPE is the path of the real
// driver.
#include <dlfcn.h>
#include <string.h>
#include <vulkan/vk_icd.h>
#include <vulkan/vulkan.h>

#define EXPORT __attribute__((visibility("default")))
#define SUBSET "VK_KHR_portability_subset"

static void* llvmpipe(const char* name) {
    static void* library;
    if (library == NULL) library = dlopen(LLVMPIPE, RTLD_NOW | RTLD_LOCAL);
    return library != NULL ? dlsym(library, name) : NULL;
}

static PFN_vkEnumerateDeviceExtensionProperties real_extensions;
static PFN_vkCreateDevice real_create_device;
static PFN_vkGetPhysicalDeviceProperties real_properties;
static PFN_vkGetPhysicalDeviceProperties2 real_properties2;
static PFN_vkGetPhysicalDeviceFeatures2 real_features2;

static void properties(VkPhysicalDevice gpu, VkPhysicalDeviceProperties* found) {
    real_properties(gpu, found);
    found->deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
}

static void properties2(VkPhysicalDevice gpu, VkPhysicalDeviceProperties2* found) {
    real_properties2(gpu, found);
    found->properties.deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
}

static void features2(VkPhysicalDevice gpu, VkPhysicalDeviceFeatures2* found) {
    real_features2(gpu, found);
    for (VkBaseOutStructure* next = (VkBaseOutStructure*)found->pNext; next != NULL; next = next->pNext)
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES)
            ((VkPhysicalDeviceVulkan11Features*)next)->storageBuffer16BitAccess = VK_FALSE;
}

static VkResult extensions(VkPhysicalDevice gpu, const char* layer, uint32_t* count, VkExtensionProperties* list) {
    uint32_t others = 0;
    VkResult result = real_extensions(gpu, layer, &others, NULL);
    if (result != VK_SUCCESS) return result;
    if (list == NULL) {
        *count = others + 1;
        return VK_SUCCESS;
    }
    if (*count <= others) return real_extensions(gpu, layer, count, list) < 0 ? VK_ERROR_UNKNOWN : VK_INCOMPLETE;
    result = real_extensions(gpu, layer, &others, list);
    memset(&list[others], 0, sizeof(list[others]));
    strcpy(list[others].extensionName, SUBSET);
    *count = others + 1;
    return result;
}

static VkResult create_device(VkPhysicalDevice gpu, const VkDeviceCreateInfo* info,
                              const VkAllocationCallbacks* allocator, VkDevice* device) {
    const char* others[64];
    uint32_t count = 0;
    for (uint32_t i = 0; i < info->enabledExtensionCount && count < 64; ++i) {
        if (strcmp(info->ppEnabledExtensionNames[i], SUBSET) != 0) others[count++] = info->ppEnabledExtensionNames[i];
    }
    if (count == info->enabledExtensionCount) return VK_ERROR_EXTENSION_NOT_PRESENT;
    VkDeviceCreateInfo without = *info;
    without.enabledExtensionCount = count;
    without.ppEnabledExtensionNames = others;
    return real_create_device(gpu, &without, allocator, device);
}

EXPORT PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance instance, const char* name) {
    PFN_vkGetInstanceProcAddr get = (PFN_vkGetInstanceProcAddr)llvmpipe("vk_icdGetInstanceProcAddr");
    PFN_vkVoidFunction real = get != NULL ? get(instance, name) : NULL;
    if (real != NULL && strcmp(name, "vkEnumerateDeviceExtensionProperties") == 0) {
        real_extensions = (PFN_vkEnumerateDeviceExtensionProperties)real;
        return (PFN_vkVoidFunction)extensions;
    }
    if (real != NULL && strcmp(name, "vkGetPhysicalDeviceProperties") == 0) {
        real_properties = (PFN_vkGetPhysicalDeviceProperties)real;
        return (PFN_vkVoidFunction)properties;
    }
    if (real != NULL && strcmp(name, "vkGetPhysicalDeviceProperties2") == 0) {
        real_properties2 = (PFN_vkGetPhysicalDeviceProperties2)real;
        return (PFN_vkVoidFunction)properties2;
    }
    if (real != NULL && strcmp(name, "vkGetPhysicalDeviceFeatures2") == 0) {
        real_features2 = (PFN_vkGetPhysicalDeviceFeatures2)real;
        return (PFN_vkVoidFunction)features2;
    }
    if (real != NULL && strcmp(name, "vkCreateDevice") == 0) {
        real_create_device = (PFN_vkCreateDevice)real;
        return (PFN_vkVoidFunction)create_device;
    }
    return real;
}

EXPORT VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t* version) {
    VkResult (*negotiate)(uint32_t*) = (VkResult(*)(uint32_t*))llvmpipe("vk_icdNegotiateLoaderICDInterfaceVersion");
    return negotiate != NULL ? negotiate(version) : VK_ERROR_INCOMPATIBLE_DRIVER;
}
