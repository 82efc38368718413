// A slow Vulkan driver without devices. Like NVIDIA's, it has a lock that it takes while it works and, by functions that
// it registers when it is loaded, at each fork.
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*Function)(void);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }

static int create_instance(const void* info, const void* allocator, void** instance) {
    (void)info, (void)allocator, (void)instance;
    pthread_atfork(lock, unlock, unlock);
    close(open(getenv("VKRNN_TEST_LOADING"), O_CREAT | O_WRONLY, 0600));
    usleep(500 * 1000);
    lock();
    unlock();
    return -9;  // VK_ERROR_INCOMPATIBLE_DRIVER
}

static int list_extensions(const char* layer, unsigned* count, void* properties) {
    (void)layer, (void)properties;
    *count = 0;
    return 0;
}

int vk_icdNegotiateLoaderICDInterfaceVersion(unsigned* version) {
    *version = 3;
    return 0;
}

Function vk_icdGetInstanceProcAddr(void* instance, const char* name) {
    (void)instance;
    if (!strcmp(name, "vkCreateInstance")) return (Function)create_instance;
    if (!strcmp(name, "vkEnumerateInstanceExtensionProperties")) return (Function)list_extensions;
    return NULL;
}
