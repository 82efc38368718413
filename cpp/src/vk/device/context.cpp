#include "vk/device/context.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "base/fork_safe_mutex.h"
#include "base/reports.h"
#include "base/system.h"
#include "vk/device/physical_device.h"
#include "vk/device/switches.h"
#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn::vk {
namespace {

constexpr const char* kValidationLayer = "VK_LAYER_KHRONOS_validation";
constexpr const char* kInstallHint =
    "install one: a graphics driver with Vulkan 1.3, or Mesa's for the CPU "
    "(Debian/Ubuntu: apt install libvulkan1 mesa-vulkan-drivers)";

struct Messages {
    ForkSafeMutex mutex;
    std::vector<std::string> texts;
};

// Never destroyed, because drivers may report messages while the process ends.
Messages& messages = *new Messages;  // NOLINT(cppcoreguidelines-owning-memory)

VKAPI_ATTR VkBool32 VKAPI_CALL collect(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
                                       const VkDebugUtilsMessengerCallbackDataEXT* data, void*) {
    const std::string text = data->pMessage != nullptr ? data->pMessage : "";
    report(Severity::warning, text);
    const std::lock_guard lock(messages.mutex);
    messages.texts.push_back(text);
    return VK_FALSE;
}

// Built from the C struct, because the callback's type differs between releases of Vulkan-Hpp.
DebugUtilsMessengerCreateInfoEXT messenger_info() {
    VkDebugUtilsMessengerCreateInfoEXT info{};
    info.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT;
    info.messageSeverity =
        VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
    info.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT;
    info.pfnUserCallback = collect;
    DebugUtilsMessengerCreateInfoEXT result;
    result = info;
    return result;
}

bool validation_wanted() { return is_on("VKRNN_VALIDATION"); }

raii::Context load() {
    try {
        return raii::Context();
    } catch (const std::runtime_error&) {
        throw DeviceError(std::string("no Vulkan loader (libvulkan.so.1) was found; ") + kInstallHint);
    }
}

std::atomic<bool> drivers_are_loaded = false;

// Drivers register exit functions that wait for the driver's threads. A forked process has no such threads, so Mesa's
// functions crash or hang there. The fork hook is registered when the library is loaded: if a thread registered it
// later, a process forked at that moment would wait for the thread for ever.
[[maybe_unused]] const bool exit_is_left_to_the_parent = system::at_fork(nullptr, nullptr, [] {
    if (drivers_are_loaded) system::skip_exit_functions();
});

// An outer mutex: while it is held, validation layers may report messages, which locks another mutex.
ForkSafeMutex& mutex_of_the_loader =
    *new ForkSafeMutex(ForkSafeMutex::Kind::outer);  // NOLINT(cppcoreguidelines-owning-memory)

template <class Properties, class Name>
bool contains(const std::vector<Properties>& list, Name Properties::*name, const char* wanted) {
    return std::any_of(list.begin(), list.end(),
                       [&](const Properties& p) { return std::strcmp((p.*name).data(), wanted) == 0; });
}

int rank(DeviceType type) {
    switch (type) {
        case DeviceType::discrete_gpu: return 0;
        case DeviceType::integrated_gpu: return 1;
        case DeviceType::virtual_gpu: return 2;
        case DeviceType::other: return 3;
        case DeviceType::cpu: return 4;
    }
    return 5;
}

}  // namespace

ForkSafeMutex& loader_mutex() { return mutex_of_the_loader; }

Context::Context() : process_(system::process_id()), loader_(load()) {
    drivers_are_loaded = true;
    try {
        create_instance();
    } catch (const ::vk::SystemError& error) {
        throw DeviceError(std::string("no Vulkan driver was found, or a driver's manifest cannot be read (") +
                          error.what() + "); " + kInstallHint);
    }
}

void Context::create_instance() {
    const bool validation = validation_wanted();
    if (validation &&
        !contains(loader_.enumerateInstanceLayerProperties(), &LayerProperties::layerName, kValidationLayer)) {
        throw DeviceError(std::string("VKRNN_VALIDATION=1, but ") + kValidationLayer +
                          " is not installed (Debian/Ubuntu: apt install vulkan-validationlayers)");
    }
    const auto offered = loader_.enumerateInstanceExtensionProperties();
    const auto offers = [&](const char* name) { return contains(offered, &ExtensionProperties::extensionName, name); };
    debug_labels_ = offers(VK_EXT_DEBUG_UTILS_EXTENSION_NAME);

    const ApplicationInfo application{
        .pApplicationName = "vkrnn", .pEngineName = "vkrnn", .apiVersion = VK_API_VERSION_1_3};
    std::vector<const char*> layers;
    std::vector<const char*> extensions;
    if (debug_labels_) {
        extensions.push_back(VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
    }
    // Without this, the loader hides drivers that implement a subset of Vulkan, such as MoltenVK.
    InstanceCreateFlags flags;
    if (offers(VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME)) {
        extensions.push_back(VK_KHR_PORTABILITY_ENUMERATION_EXTENSION_NAME);
        flags |= InstanceCreateFlagBits::eEnumeratePortabilityKHR;
    }
    const std::array enabled{ValidationFeatureEnableEXT::eSynchronizationValidation};
    // The instance gets the messenger too, so that messages about creating and destroying the instance are collected.
    DebugUtilsMessengerCreateInfoEXT messenger = messenger_info();
    const ValidationFeaturesEXT features{.pNext = &messenger,
                                         .enabledValidationFeatureCount = static_cast<std::uint32_t>(enabled.size()),
                                         .pEnabledValidationFeatures = enabled.data()};
    if (validation) {
        layers.push_back(kValidationLayer);
        if (!debug_labels_) {
            extensions.push_back(VK_EXT_DEBUG_UTILS_EXTENSION_NAME);  // the validation layer provides it
        }
        extensions.push_back(VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME);
    }
    const InstanceCreateInfo info{.pNext = validation ? &features : nullptr,
                                  .flags = flags,
                                  .pApplicationInfo = &application,
                                  .enabledLayerCount = static_cast<std::uint32_t>(layers.size()),
                                  .ppEnabledLayerNames = layers.data(),
                                  .enabledExtensionCount = static_cast<std::uint32_t>(extensions.size()),
                                  .ppEnabledExtensionNames = extensions.data()};
    instance_ = raii::Instance(loader_, info);
    if (validation) {
        messenger_ = raii::DebugUtilsMessengerEXT(instance_, messenger);
    }
}

std::shared_ptr<const Context> Context::get() {
    // Never destroyed: see the header. After a fork, the parent's instance leaks, because it must not be used here.
    const std::lock_guard lock(loader_mutex());
    static auto* const current = new std::shared_ptr<const Context>;
    if (*current && (*current)->process_ != system::process_id()) {
        new std::shared_ptr<const Context>(std::move(*current));
        current->reset();
    }
    if (!*current) {
        *current = std::shared_ptr<const Context>(new Context);
    }
    return *current;
}

std::vector<raii::PhysicalDevice> Context::physical_devices() const {
    try {
        return instance_.enumeratePhysicalDevices();
    } catch (const ::vk::SystemError& error) {
        throw DeviceError(std::string("the Vulkan devices could not be listed (") + error.what() + "); " +
                          kInstallHint);
    }
}

std::vector<SkippedDevice> Context::skipped() const {
    std::vector<SkippedDevice> found;
    const std::lock_guard lock(loader_mutex());
    for (const raii::PhysicalDevice& physical : physical_devices()) {
        if (auto reason = unusable(physical)) {
            const auto properties = physical.getProperties();
            found.push_back({properties.deviceName.data(), device_type(properties.deviceType), std::move(*reason)});
        }
    }
    return found;
}

std::vector<Context::Candidate> Context::candidates() const {
    std::vector<Candidate> found;
    {
        const std::lock_guard lock(loader_mutex());
        for (raii::PhysicalDevice& physical : physical_devices()) {
            if (unusable(physical)) continue;
            Profile profile = read_profile(physical);
            found.push_back({std::move(physical), std::move(profile)});
        }
    }
    if (found.empty()) {
        std::string reasons;
        for (const SkippedDevice& device : skipped()) {
            reasons += (reasons.empty() ? " (skipped: " : "; ") + device.name + ": " + device.reason;
        }
        throw DeviceError("no Vulkan 1.3 device was found" + reasons + (reasons.empty() ? "; " : "); ") + kInstallHint);
    }
    std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
        return rank(a.profile.type) < rank(b.profile.type);
    });
    return found;
}

}  // namespace vkrnn::vk

namespace vkrnn {

std::vector<std::string> validation_messages() {
    if (vk::validation_wanted()) {
        vk::Context::get();
    }
    const std::lock_guard lock(vk::messages.mutex);
    return vk::messages.texts;
}

}  // namespace vkrnn
