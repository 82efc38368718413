#include "vkrnn/environment.h"

#include <cstdlib>
#include <cstring>

namespace vkrnn {
namespace {

thread_local const EnvironmentCopy* latest = nullptr;

std::optional<std::string> read(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace

EnvironmentCopy::EnvironmentCopy(std::span<const char* const> names) : names_(names), before_(latest) {
    for (std::size_t i = 0; i < names.size(); ++i) values_.at(i) = read(names[i]);
    latest = this;
}

EnvironmentCopy::~EnvironmentCopy() { latest = before_; }

std::optional<std::string> environment_variable(const char* name) {
    if (latest != nullptr)
        for (std::size_t i = 0; i < latest->names_.size(); ++i)
            if (std::strcmp(latest->names_[i], name) == 0) return latest->values_[i];
    return read(name);
}

}  // namespace vkrnn
