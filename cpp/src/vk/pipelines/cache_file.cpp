#include "vk/pipelines/cache_file.h"

#include <cstring>
#include <sstream>
#include <string>

#include "base/checked_file.h"
#include "base/reports.h"
#include "vkrnn/device.h"
#include "vkrnn/environment.h"

namespace vkrnn::vk {
namespace {

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
    // Some drivers crash on an invalid cache instead of rejecting it. So the driver only gets data whose checksum is
    // right, and whose header matches.
    CheckedFile found = read_checked(file);
    const std::vector<std::byte>& data = found.contents;
    if (!found.damaged && data.size() < sizeof(PipelineCacheHeaderVersionOne)) {
        return {};  // no file, or the driver returned no data, as Mesa 26.2's llvmpipe does
    }
    if (found.damaged || !header_matches(data, properties)) {
        report(Severity::info, file.string() + " is damaged or of another driver: shaders are compiled anew");
        return {};
    }
    return std::move(found.contents);
}

void write_cache(const std::filesystem::path& file, std::span<const std::uint8_t> data) noexcept {
    if (file.empty() || write_checked(file, std::as_bytes(data))) {
        return;
    }
    try {
        report(Severity::warning, file.string() + " cannot be written: each process compiles the shaders anew");
    } catch (...) {  // no memory for the text
    }
}

}  // namespace vkrnn::vk
