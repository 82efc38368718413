#include "vkrnn/environment.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "system.h"

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
    if (auto own = environment_variable("VKRNN_CACHE_DIR"); own && !own->empty()) return *own;
    return system::cache_folder("vkrnn").string();
}

}  // namespace vkrnn
