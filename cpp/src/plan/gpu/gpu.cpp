#include "gpu.h"

namespace vkrnn {
namespace {

constexpr std::int64_t kUsualMultiprocessors = 32;
constexpr std::int64_t kUsualRegisters = 65536;
constexpr std::uint32_t kAmd = 0x1002;  // AMD's PCI vendor ID

}  // namespace

std::int64_t multiprocessors(const Profile& profile) {
    return profile.compute_units != 0 ? profile.compute_units : kUsualMultiprocessors;
}

std::int64_t registers_of(const Profile& profile) {
    return profile.registers != 0 ? profile.registers : kUsualRegisters;
}

bool is_amd(const Profile& profile) { return profile.vendor_id == kAmd; }

}  // namespace vkrnn
