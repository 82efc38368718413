#include "cuda/kernels/compiler.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/checked_file.h"
#include "base/lazy.h"
#include "base/reports.h"
#include "cuda/kernels/sources.h"
#include "cuda/libraries/driver.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"

namespace vkrnn::cuda {
namespace {

// These end the names of kernels that compute in float64, and of those with tensors in a 16-bit type.
constexpr std::string_view kFloat64 = "_f64", k16Bit = "_16bit";
constexpr std::string_view kCells = "cells/", kCellKernels = "/drivers/", kCell = ".glsl", kPlain = ".comp";

// A kernel's file, and its cell if it is a cell kernel.
struct KernelSource {
    std::string_view file, cell;
    bool float64, has_16bit_tensors;
};

// Names of kernels are made in cmake/Shaders.cmake.
KernelSource find_kernel(std::string_view name) {
    KernelSource place{
        .file = {}, .cell = {}, .float64 = name.ends_with(kFloat64), .has_16bit_tensors = name.ends_with(k16Bit)};
    if (place.float64) name.remove_suffix(kFloat64.size());
    if (place.has_16bit_tensors) name.remove_suffix(k16Bit.size());
    for (const SourceFile& source : sources())
        if (std::string_view(source.name).ends_with("/" + std::string(name) + std::string(kPlain))) {
            place.file = source.name;
            return place;
        }
    for (const SourceFile& cell_file : sources()) {
        std::string_view cell = cell_file.name;
        if (!cell.starts_with(kCells)) continue;
        cell.remove_prefix(kCells.size());
        cell.remove_suffix(kCell.size());
        if (!name.starts_with(std::string(cell) + "_")) continue;
        const std::string cell_kernel =
            std::string(kCellKernels) + std::string(name.substr(cell.size() + 1)) + std::string(kCell);
        for (const SourceFile& source : sources())
            if (std::string_view(source.name).ends_with(cell_kernel)) {
                place.file = source.name;
                place.cell = cell;
                return place;
            }
    }
    throw std::out_of_range("no kernel is named " + std::string(name));
}

std::string main_source(const KernelSource& place, const std::string& name) {
    return "#define VKRNN_KERNEL " + name + "\n#include \"cuda/glsl.cuh\"\nstruct Kernel {\n#include \"" +
           std::string(place.file) + "\"\n};\n#include \"cuda/entry.cuh\"\n";
}

// Returns the file that cell kernels include for their cell.
std::string chosen_cell(const KernelSource& place) {
    return "#ifndef VKRNN_CHOSEN_CELL\n#define VKRNN_CHOSEN_CELL\n#include \"" + std::string(kCells) +
           std::string(place.cell) + std::string(kCell) + "\"\n#endif\n";
}

std::vector<std::pair<std::string, std::string>> headers(const KernelSource& place) {
    std::vector<std::pair<std::string, std::string>> all;
    for (const SourceFile& source : sources()) all.emplace_back(source.name, source.text);
    all.emplace_back("chosen_cell.glsl", chosen_cell(place));
    return all;
}

std::uint64_t hash(std::string_view text, std::uint64_t before) {
    return fnv1a(std::as_bytes(std::span(text.data(), text.size() + 1)), before);  // each text ends with its 0
}

std::uint64_t hash_of_sources() {
    static constinit Lazy<std::uint64_t> of_sources;
    return of_sources.get([] {
        std::uint64_t all = fnv1a({});
        for (const SourceFile& file : sources()) all = hash(file.text, hash(file.name, all));
        return all;
    });
}

std::string hexadecimal(std::uint64_t number) {
    std::ostringstream text;
    text << std::hex << std::setw(16) << std::setfill('0') << number;
    return text.str();
}

// Returns a name that differs for every other source, option or compiler.
std::string cache_name(const std::string& source, const std::vector<std::string>& options, int version) {
    std::string name;
    for (const char* salt : {"", "second"}) {
        std::uint64_t all = hash(source, hash(salt, hash_of_sources()));
        for (const std::string& option : options) all = hash(option.c_str(), all);
        name += hexadecimal(hash(std::to_string(version).c_str(), all));
    }
    return name + ".cubin";
}

}  // namespace

std::string entry_name(const Kernel& kernel) { return "vkrnn_" + kernel.shader; }

Compiler::Compiler(int major, int minor)
    : nvrtc_(Nvrtc::get()), architecture_("sm_" + std::to_string(10 * major + minor)), folder_(cache_directory()) {}

std::string Compiler::name() const { return "NVRTC " + version_text(nvrtc_.version()); }

std::string Compiler::key() const {
    return "NVRTC-" + version_text(nvrtc_.version()) + "-" + architecture_ + "-" + hexadecimal(hash_of_sources());
}

std::vector<std::byte> Compiler::compile(const Kernel& kernel) const {
    const KernelSource place = find_kernel(kernel.shader);
    const std::string source = main_source(place, entry_name(kernel));
    // As in Vulkan, a division may be off by two units in the last place. An exact one branches, which keeps the
    // compiler from overlapping the activations of a step.
    std::vector<std::string> options{"--gpu-architecture=" + architecture_, "--std=c++20", "--prec-div=false"};
    if (place.float64) options.emplace_back("--define-macro=VKRNN_FLOAT64");
    if (place.has_16bit_tensors) options.emplace_back("--define-macro=VKRNN_16BIT");
    if (!kernel.constants.empty()) {
        std::string constants = "--define-macro=VKRNN_CONSTANTS=";
        for (const std::uint32_t constant : kernel.constants) constants += std::to_string(constant) + ",";
        options.push_back(constants.substr(0, constants.size() - 1));
    }
    const std::filesystem::path file = folder_.empty()
                                           ? std::filesystem::path()
                                           : std::filesystem::path(folder_) / "cuda" /
                                                 cache_name(source + chosen_cell(place), options, nvrtc_.version());
    if (CheckedFile cached = read_checked(file); !cached.contents.empty()) return std::move(cached.contents);
    Compiled made;
    try {
        made = nvrtc_.compile(source, headers(place), options);
    } catch (const std::runtime_error& error) {
        made.log = error.what();
    }
    if (made.cubin.empty())
        throw DeviceError(name() + " cannot compile the kernel " + kernel.shader + " for " + architecture_ + ": " +
                          made.log);
    if (!file.empty() && !write_checked(file, made.cubin))
        report(Severity::warning,
               file.parent_path().string() + " cannot be written to: each process compiles the kernels anew");
    return std::move(made.cubin);
}

}  // namespace vkrnn::cuda
