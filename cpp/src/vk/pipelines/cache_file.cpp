#include "vk/pipelines/cache_file.h"

#include <array>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "reports.h"
#include "vk/device/context.h"
#include "vkrnn/device.h"
#include "vkrnn/environment.h"

namespace vkrnn::vk {
namespace {

// Some drivers crash on an invalid cache instead of rejecting it. So the driver only gets data whose header matches,
// and whose checksum, which precedes the data in the file, is right.
struct Prologue {
    std::array<char, 8> magic{'v', 'k', 'r', 'n', 'n', 'p', 'c', '1'};
    std::uint64_t bytes = 0;
    std::uint64_t hash = 0;
};

std::uint64_t fnv1a(std::span<const std::byte> data) {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const std::byte byte : data) {
        hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
    }
    return hash;
}

bool header_matches(std::span<const std::byte> data, const PhysicalDeviceProperties& properties) {
    PipelineCacheHeaderVersionOne header;
    if (data.size() < sizeof(header)) {
        return false;
    }
    std::memcpy(static_cast<void*>(&header), data.data(), sizeof(header));
    return header.headerSize >= sizeof(header) && header.headerSize <= data.size() &&
           header.headerVersion == PipelineCacheHeaderVersion::eOne && header.vendorID == properties.vendorID &&
           header.deviceID == properties.deviceID && header.pipelineCacheUUID == properties.pipelineCacheUUID;
}

}  // namespace

std::filesystem::path cache_file(const PhysicalDeviceProperties& properties) {
    const std::string directory = cache_directory();
    if (directory.empty()) {
        return {};
    }
    std::ostringstream name;
    name << std::hex << properties.vendorID << '-' << properties.deviceID << '-' << properties.driverVersion << '-';
    for (const unsigned byte : properties.pipelineCacheUUID) {
        name << (byte >> 4) << (byte & 15);
    }
    name << ".pipelines";
    return std::filesystem::path(directory) / name.str();
}

std::vector<std::byte> read_cache(const std::filesystem::path& file, const PhysicalDeviceProperties& properties) {
    constexpr std::uint64_t kLargest = 256 << 20;
    std::error_code error;
    const auto size = file.empty() ? 0 : std::filesystem::file_size(file, error);
    if (error || size < sizeof(Prologue) || size > kLargest) {
        return {};
    }
    Prologue prologue;
    std::vector<std::byte> data(size - sizeof(prologue));
    std::ifstream stream(file, std::ios::binary);
    stream.read(reinterpret_cast<char*>(&prologue), sizeof(prologue));
    stream.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(data.size()));
    const bool whole =
        stream && prologue.magic == Prologue{}.magic && prologue.bytes == data.size() && prologue.hash == fnv1a(data);
    if (whole && data.size() < sizeof(PipelineCacheHeaderVersionOne)) {
        return {};  // the driver returned no data, as Mesa 26.2's llvmpipe does
    }
    if (!whole || !header_matches(data, properties)) {
        report(Severity::info, file.string() + " is damaged or of another driver: shaders are compiled anew");
        return {};
    }
    return data;
}

void write_cache(const std::filesystem::path& file, std::span<const std::uint8_t> data) noexcept {
    if (file.empty()) {
        return;
    }
    try {
        std::error_code error;
        std::filesystem::create_directories(file.parent_path(), error);
        // Each process and device has its own temporary file, because several may write at the same time.
        std::filesystem::path temporary = file;
        temporary += '.' + std::to_string(process_id()) + '-' +
                     std::to_string(reinterpret_cast<std::uintptr_t>(data.data())) + ".tmp";
        const Prologue prologue{.bytes = data.size(), .hash = fnv1a(std::as_bytes(data))};
        std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
        stream.write(reinterpret_cast<const char*>(&prologue), sizeof(prologue));
        stream.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
        stream.close();
        if (stream) {
            std::filesystem::rename(temporary, file, error);
        }
        if (!stream || error) {
            std::filesystem::remove(temporary, error);
            report(Severity::warning, file.string() + " cannot be written: each process compiles the shaders anew");
        }
    } catch (...) {  // no memory for a path: nothing is written
    }
}

}  // namespace vkrnn::vk
