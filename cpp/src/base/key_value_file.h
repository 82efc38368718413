// Reads files of "key number" lines, such as those of the Linux kernel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace vkrnn {

// Returns the number on the line that begins with `key`; nothing if the file has no such line.
inline std::optional<std::uint64_t> number_after(const std::filesystem::path& file, std::string_view key) {
    std::ifstream stream(file);
    for (std::string word; stream >> word; stream.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
        std::uint64_t value = 0;
        if (word == key && stream >> value) return value;
    }
    return std::nullopt;
}

}  // namespace vkrnn
