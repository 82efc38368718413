// Makes single Vulkan calls fail, by functions between the core and the driver. Allocations in the driver never fail,
// because LLVM would end the process.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "allocation_faults.h"
#include "vk/device/context.h"
#include "vk/device/vulkan.h"

namespace vkrnn::test {

class Faults {
public:
    static Faults& get() {
        static Faults instance;
        return instance;
    }

    // Makes the n-th call from now on that can return this error do so without being made; n = 0 for none. After a
    // device loss, all functions that can report it do so.
    void arm(VkResult error, std::uint64_t n) {
        error_ = error;
        left_ = n;
        lost_ = false;
        failed_.clear();
    }
    // Stops this.
    void disarm() {
        left_ = 0;
        lost_ = false;
    }
    // Returns the function that failed since arm(), or an empty string.
    [[nodiscard]] const std::string& failed() const { return failed_; }

    // Returns the number of live Vulkan objects, without command buffers.
    [[nodiscard]] std::int64_t objects() const { return objects_; }

private:
    // Returns how many objects a function makes or destroys with these arguments. Command buffers end with their pool
    // at the latest.
    static std::int64_t count(VkDevice, const VkCommandBufferAllocateInfo*, VkCommandBuffer*) { return 0; }
    static std::int64_t count(VkDevice, VkCommandPool, std::uint32_t, const VkCommandBuffer*) { return 0; }
    static std::int64_t count(auto...) { return 1; }

    // A function's name as a template argument, so that each function has its own replacement.
    template <std::size_t kLength>
    struct Name {
        consteval Name(const char (&from)[kLength]) { std::copy_n(from, kLength, text); }
        char text[kLength]{};
    };

    template <Name kName, class Function>
    struct Hook;

    template <Name kName, class... Args>
    struct Hook<kName, VkResult(VKAPI_PTR*)(Args...)> {
        static inline VkResult(VKAPI_PTR* real)(Args...) = nullptr;
        static VKAPI_ATTR VkResult VKAPI_CALL call(Args... args) {
            if (const VkResult error = get().next(kName.text); error != VK_SUCCESS) return error;
            const Allocations::Ignored drivers;
            const VkResult result = real(args...);
            const std::string_view name = kName.text;
            if (result >= 0 && (name.starts_with("vkCreate") || name.starts_with("vkAllocate")))
                get().objects_ += count(args...);
            return result;
        }
    };

    template <Name kName, class Result, class... Args>
    struct Hook<kName, Result(VKAPI_PTR*)(Args...)> {
        static inline Result(VKAPI_PTR* real)(Args...) = nullptr;
        static VKAPI_ATTR Result VKAPI_CALL call(Args... args) {
            const std::string_view name = kName.text;
            if (name.starts_with("vkDestroy") || name.starts_with("vkFree")) get().objects_ -= count(args...);
            const Allocations::Ignored drivers;
            return real(args...);
        }
    };

    Faults() {
        const auto context = vk::Context::get();
        const auto candidates = context->candidates();
        // The instance keeps its table of functions as long as it lives, and the process never destroys it.
        using Table = std::remove_const_t<std::remove_pointer_t<decltype(candidates[0].physical.getDispatcher())>>;
        auto& table = const_cast<Table&>(*candidates[0].physical.getDispatcher());
        real_address_ = table.vkGetDeviceProcAddr;
        table.vkGetDeviceProcAddr = address;
        replace<"vkCreateDevice">(table.vkCreateDevice);
        replace<"vkEnumeratePhysicalDevices">(table.vkEnumeratePhysicalDevices);
        replace<"vkEnumerateDeviceExtensionProperties">(table.vkEnumerateDeviceExtensionProperties);
    }

    template <Name kName, class Function>
    static void replace(Function& function) {
        Hook<kName, Function>::real = function;
        function = Hook<kName, Function>::call;
    }

    // Every device function that the core calls is listed here. Others cannot be called.
    static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL address(VkDevice device, const char* name) {
        get().device_ = device;
        const PFN_vkVoidFunction real = get().real_address_(device, name);
        if (real == nullptr) return nullptr;
        if (std::string_view(name) == "vkGetDeviceProcAddr") return reinterpret_cast<PFN_vkVoidFunction>(address);
#define HOOK(function)                                       \
    if (std::string_view(name) == #function) {               \
        auto found = reinterpret_cast<PFN_##function>(real); \
        replace<#function>(found);                           \
        return reinterpret_cast<PFN_vkVoidFunction>(found);  \
    }
        // clang-format off
        HOOK(vkAllocateCommandBuffers); HOOK(vkAllocateMemory); HOOK(vkBeginCommandBuffer); HOOK(vkBindBufferMemory);
        HOOK(vkCmdBeginDebugUtilsLabelEXT); HOOK(vkCmdBindPipeline); HOOK(vkCmdCopyBuffer); HOOK(vkCmdDispatch);
        HOOK(vkCmdEndDebugUtilsLabelEXT); HOOK(vkCmdFillBuffer); HOOK(vkCmdPipelineBarrier2); HOOK(vkCmdPushConstants);
        HOOK(vkCmdPushDescriptorSetKHR); HOOK(vkCmdResetQueryPool); HOOK(vkCmdUpdateBuffer);
        HOOK(vkCmdWriteTimestamp2); HOOK(vkCreateBuffer); HOOK(vkCreateCommandPool); HOOK(vkCreateComputePipelines);
        HOOK(vkCreateDescriptorSetLayout); HOOK(vkCreatePipelineCache);
        HOOK(vkCreatePipelineLayout); HOOK(vkCreateQueryPool); HOOK(vkCreateSemaphore); HOOK(vkCreateShaderModule);
        HOOK(vkDestroyBuffer); HOOK(vkDestroyCommandPool); HOOK(vkDestroyDescriptorSetLayout); HOOK(vkDestroyDevice);
        HOOK(vkDestroyPipeline);
        HOOK(vkDestroyPipelineCache); HOOK(vkDestroyPipelineLayout); HOOK(vkDestroyQueryPool); HOOK(vkDestroySemaphore);
        HOOK(vkDestroyShaderModule); HOOK(vkEndCommandBuffer); HOOK(vkFreeCommandBuffers); HOOK(vkFreeMemory);
        HOOK(vkGetBufferDeviceAddress); HOOK(vkGetBufferMemoryRequirements); HOOK(vkGetDeviceQueue);
        HOOK(vkGetMemoryHostPointerPropertiesEXT); HOOK(vkGetPipelineCacheData); HOOK(vkGetQueryPoolResults);
        HOOK(vkGetSemaphoreCounterValue); HOOK(vkMapMemory); HOOK(vkQueueSubmit2); HOOK(vkResetCommandPool);
        HOOK(vkWaitSemaphores);
        // clang-format on
#undef HOOK
        return unknown;
    }

    static VKAPI_ATTR void VKAPI_CALL unknown() {
        static_cast<void>(
            std::fputs("The core calls a function of Vulkan that is not listed in vk_faults.h\n", stderr));
        std::abort();
    }

    // Returns the error that this call of the function shall return, if any.
    VkResult next(std::string_view function) {
        constexpr std::array<std::string_view, 5> kSayThatItIsLost{"vkCreateDevice", "vkGetQueryPoolResults",
                                                                   "vkGetSemaphoreCounterValue", "vkQueueSubmit2",
                                                                   "vkWaitSemaphores"};
        const bool says_so = std::ranges::find(kSayThatItIsLost, function) != kSayThatItIsLost.end();
        if (lost_ && says_so) return VK_ERROR_DEVICE_LOST;
        if (left_ == 0 || (error_ == VK_ERROR_DEVICE_LOST && !says_so) || --left_ != 0) return VK_SUCCESS;
        failed_ = function;
        if (error_ == VK_ERROR_DEVICE_LOST && function != "vkCreateDevice") {
            // A lost device does no more work, so the core may destroy everything that it was using.
            reinterpret_cast<PFN_vkDeviceWaitIdle>(real_address_(device_, "vkDeviceWaitIdle"))(device_);
            lost_ = true;
        }
        return error_;
    }

    PFN_vkGetDeviceProcAddr real_address_ = nullptr;
    VkDevice device_ = nullptr;  // the most recently opened one
    VkResult error_ = VK_SUCCESS;
    std::uint64_t left_ = 0;  // calls until the one that fails
    bool lost_ = false;
    std::string failed_;
    std::int64_t objects_ = 0;
};

}  // namespace vkrnn::test
