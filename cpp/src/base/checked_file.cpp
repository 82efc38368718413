#include "checked_file.h"

#include <array>
#include <fstream>
#include <string>
#include <system_error>

#include "system.h"

namespace vkrnn {
namespace {

struct Prologue {
    std::array<char, 8> magic{'v', 'k', 'r', 'n', 'n', 'p', 'c', '1'};
    std::uint64_t bytes = 0;
    std::uint64_t hash = 0;
};

}  // namespace

std::uint64_t fnv1a(std::span<const std::byte> data, std::uint64_t hash) {
    for (const std::byte byte : data) {
        hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
    }
    return hash;
}

CheckedFile read_checked(const std::filesystem::path& file) {
    constexpr std::uint64_t kLargest = 256 << 20;
    std::error_code error;
    const auto size = file.empty() ? 0 : std::filesystem::file_size(file, error);
    if (error || size < sizeof(Prologue) || size > kLargest) return {};
    Prologue prologue;
    std::vector<std::byte> data(size - sizeof(prologue));
    std::ifstream stream(file, std::ios::binary);
    stream.read(reinterpret_cast<char*>(&prologue), sizeof(prologue));
    stream.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(data.size()));
    const bool whole =
        stream && prologue.magic == Prologue{}.magic && prologue.bytes == data.size() && prologue.hash == fnv1a(data);
    if (!whole) return {.contents = {}, .damaged = true};
    return {std::move(data)};
}

bool write_checked(const std::filesystem::path& file, std::span<const std::byte> contents) noexcept {
    try {
        std::error_code error;
        std::filesystem::create_directories(file.parent_path(), error);
        // Each process and thread has its own temporary file, because several may write at the same time.
        std::filesystem::path temporary = file;
        temporary += '.' + std::to_string(system::process_id()) + '-' +
                     std::to_string(reinterpret_cast<std::uintptr_t>(contents.data())) + ".tmp";
        const Prologue prologue{.bytes = contents.size(), .hash = fnv1a(contents)};
        std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
        stream.write(reinterpret_cast<const char*>(&prologue), sizeof(prologue));
        stream.write(reinterpret_cast<const char*>(contents.data()), static_cast<std::streamsize>(contents.size()));
        stream.close();
        if (stream) std::filesystem::rename(temporary, file, error);
        if (stream && !error) return true;
        std::filesystem::remove(temporary, error);
    } catch (...) {  // no memory for a path: nothing is written
    }
    return false;
}

}  // namespace vkrnn
