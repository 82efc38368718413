// Devices and calls for tests of strategies.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "plan/strategy.h"
#include "vkrnn/error.h"

namespace vkrnn {

inline Profile profile_of(DeviceType type, std::uint32_t subgroup_size, std::uint32_t invocations) {
    Profile profile;
    profile.name = "a device";
    profile.type = type;
    profile.subgroup_size = subgroup_size;
    profile.max_workgroup_invocations = profile.max_workgroup_size_x = invocations;
    return profile;
}

inline Profile native() {
    Profile profile = profile_of(DeviceType::cpu, 8, 128);
    profile.backend = Backend::native;
    return profile;
}

// An NVIDIA GPU.
inline Profile with_matrix_units() {
    Profile profile = profile_of(DeviceType::discrete_gpu, 32, 1024);
    profile.registers = 65536;
    profile.max_shared_memory = 48 << 10;
    profile.matrix_side = 16;
    return profile;
}

inline Spec small_call() {
    Spec spec;
    spec.descriptor = default_descriptor(CellKind::lstm);
    spec.T = spec.N = spec.I = spec.H = 4;
    spec.present = 1U << static_cast<unsigned>(Argument::recurrent_weight);
    return spec;
}

inline StrategyChoice chosen(const Profile& profile, const StrategyChoice& fixed = {}) {
    return make_plan(small_call(), profile, fixed).choice;
}

template <class Exception>
std::string refusal(const StrategyChoice& fixed, const Profile& profile) {
    try {
        check_choice(fixed, profile);
    } catch (const Exception& error) {
        return error.what();
    }
    ADD_FAILURE() << "no exception was thrown";
    return {};
}

}  // namespace vkrnn
