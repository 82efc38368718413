#include "vkrnn/environment.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace vkrnn {
namespace {

thread_local const EnvironmentCopy* latest = nullptr;

std::optional<std::string> read(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace

EnvironmentValues::EnvironmentValues(std::span<const char* const> all) : names(all) {
    for (std::size_t i = 0; i < names.size(); ++i) values.at(i) = read(names[i]);
}

EnvironmentCopy::EnvironmentCopy(EnvironmentValues values) : read_(std::move(values)), before_(latest) {
    latest = this;
}

EnvironmentCopy::~EnvironmentCopy() { latest = before_; }

std::optional<std::string> environment_variable(const char* name) {
    if (latest != nullptr) {
        const EnvironmentValues& copy = latest->read_;
        for (std::size_t i = 0; i < copy.names.size(); ++i)
            if (std::strcmp(copy.names[i], name) == 0) return copy.values[i];
    }
    return read(name);
}

std::string cache_directory() {
    const auto variable = [](const char* name) -> std::filesystem::path {
        return environment_variable(name).value_or("");
    };
    if (const auto own = variable("VKRNN_CACHE_DIR"); !own.empty()) {
        return own.string();
    }
#ifdef _WIN32
    const auto local = variable("LOCALAPPDATA");
    return local.empty() ? "" : (local / "vkrnn" / "Cache").string();
#else
    // The XDG specification says that relative paths are ignored.
    if (const auto xdg = variable("XDG_CACHE_HOME"); xdg.is_absolute()) {
        return (xdg / "vkrnn").string();
    }
#ifdef __APPLE__
    constexpr const char* kCaches = "Library/Caches";
#else
    constexpr const char* kCaches = ".cache";
#endif
    const auto home = variable("HOME");
    return home.empty() ? "" : (home / kCaches / "vkrnn").string();
#endif
}

}  // namespace vkrnn
