// A Vulkan 1.2 driver with one discrete GPU that does nothing, for tests of skipped devices.
#include <string.h>
#include <vulkan/vk_icd.h>
#include <vulkan/vulkan.h>

#define EXPORT __attribute__((visibility("default")))

static VK_LOADER_DATA instance_handle = {ICD_LOADER_MAGIC};
static VK_LOADER_DATA gpu_handle = {ICD_LOADER_MAGIC};

static VkResult create_instance(const VkInstanceCreateInfo* info, const VkAllocationCallbacks* allocator,
                                VkInstance* instance) {
    (void)info, (void)allocator;
    *instance = (VkInstance)&instance_handle;
    return VK_SUCCESS;
}

static VkResult list_gpus(VkInstance instance, uint32_t* count, VkPhysicalDevice* gpus) {
    (void)instance;
    if (gpus != NULL) gpus[0] = (VkPhysicalDevice)&gpu_handle;
    *count = 1;
    return VK_SUCCESS;
}

static void properties(VkPhysicalDevice gpu, VkPhysicalDeviceProperties* found) {
    (void)gpu;
    memset(found, 0, sizeof(*found));
    found->apiVersion = VK_MAKE_API_VERSION(0, 1, 2, 175);
    found->deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    strcpy(found->deviceName, "Abacus 3000");
}

// Everything else: there is nothing of it, and no list has entries.
static VkResult nothing(void* handle, void* other, uint32_t* count) {
    (void)handle, (void)other, (void)count;
    return VK_SUCCESS;
}

static VkResult no_entries(const char* layer, uint32_t* count, void* list) {
    (void)layer, (void)list;
    *count = 0;
    return VK_SUCCESS;
}

static VkResult no_device_extensions(VkPhysicalDevice gpu, const char* layer, uint32_t* count, void* list) {
    (void)gpu;
    return no_entries(layer, count, list);
}

static void no_queues(VkPhysicalDevice gpu, uint32_t* count, void* list) {
    (void)gpu, (void)list;
    *count = 0;
}

EXPORT PFN_vkVoidFunction vk_icdGetInstanceProcAddr(VkInstance instance, const char* name) {
    (void)instance;
    if (strcmp(name, "vkCreateInstance") == 0) return (PFN_vkVoidFunction)create_instance;
    if (strcmp(name, "vkEnumeratePhysicalDevices") == 0) return (PFN_vkVoidFunction)list_gpus;
    if (strcmp(name, "vkGetPhysicalDeviceProperties") == 0) return (PFN_vkVoidFunction)properties;
    if (strcmp(name, "vkEnumerateInstanceExtensionProperties") == 0) return (PFN_vkVoidFunction)no_entries;
    if (strcmp(name, "vkEnumerateDeviceExtensionProperties") == 0) return (PFN_vkVoidFunction)no_device_extensions;
    if (strcmp(name, "vkGetPhysicalDeviceQueueFamilyProperties") == 0) return (PFN_vkVoidFunction)no_queues;
    if (strcmp(name, "vkEnumerateInstanceVersion") == 0 || strcmp(name, "vkEnumeratePhysicalDeviceGroups") == 0)
        return NULL;
    return (PFN_vkVoidFunction)nothing;
}

EXPORT VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t* version) {
    if (*version > 4) *version = 4;
    return VK_SUCCESS;
}
