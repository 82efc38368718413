// Files of a cache, which begin with a checksum of their contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace vkrnn {

struct CheckedFile {
    std::vector<std::byte> contents;
    bool damaged = false;  // the file exists, but its contents are not those that were written; they are left out
};

// Reads a file that write_checked() has written. Without such a file, the contents are empty.
CheckedFile read_checked(const std::filesystem::path& file);

// Writes a file, and its folder if there is none. Readers see the old contents or the new ones, also while several
// processes write. Returns false if the file cannot be written.
bool write_checked(const std::filesystem::path& file, std::span<const std::byte> contents) noexcept;

// Returns the FNV-1a hash of the data, continued from another one.
std::uint64_t fnv1a(std::span<const std::byte> data, std::uint64_t hash = 0xcbf29ce484222325);

}  // namespace vkrnn
