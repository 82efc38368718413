#include "cuda/library.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace vkrnn::cuda {

#ifdef _WIN32
void* open_library(const std::string& name) { return reinterpret_cast<void*>(LoadLibraryA(name.c_str())); }

void* find_function(void* library, const char* name) {
    return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}
#else
void* open_library(const std::string& name) { return dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); }

void* find_function(void* library, const char* name) { return dlsym(library, name); }
#endif

}  // namespace vkrnn::cuda
