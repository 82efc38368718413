// Environment variables that tests set.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace vkrnn::test {

// Sets a variable, or removes it.
inline void set_variable(const char* name, const std::optional<std::string>& value) {
#ifdef _WIN32
    _putenv_s(name, value.value_or("").c_str());  // an empty text removes it
#else
    if (value)
        setenv(name, value->c_str(), 1);
    else
        unsetenv(name);
#endif
}

// Sets a variable during the object's lifetime.
class Variable {
public:
    Variable(const char* name, const std::string& value) : name_(name) {
        if (const char* const old = std::getenv(name); old != nullptr) old_ = old;
        set_variable(name, value);
    }
    ~Variable() { set_variable(name_, old_); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

private:
    const char* name_;
    std::optional<std::string> old_;
};

}  // namespace vkrnn::test
