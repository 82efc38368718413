// Where several devices of one CPU share a call's dispatches (see vk/team.h), each adds one to a number they all see and
// goes on when all have. Each counts the meetings itself, so that a recorded meeting can be submitted again. A kernel that waits gives up after so many turns; then `patient` workgroups wait longer, and the
// last of them tells that the others did not come.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_ballot : require
#include "abi.h"

layout(local_size_x = 1) in;
layout(constant_id = kMeetPatient) const uint patient = 0;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Number { uint value; };
layout(push_constant, std430) uniform Push { MeetPush p; } push;

const uint kTurns = 60000;   // Mesa 22.3 ends loops after 65,535
const uint kEager = 4000;    // turns without a pause
const uint kPause = 16;      // additions to a number of no meaning; that many more where it is patient

// Broadcast, because the driver goes on with a loop until the invocations that are not there have left it as well.
bool all_came(uint expected) {
    return int(subgroupBroadcastFirst(atomicAdd(Number(push.p.meeting).value, 0u)) - expected) >= 0;
}

void main() {
    uint expected = Number(push.p.own + kMeetExpected).value;
    if (patient == 0) {
        expected += push.p.devices;
        Number(push.p.own + kMeetExpected).value = expected;
        atomicAdd(Number(push.p.meeting).value, 1u);
    }
    bool done = all_came(expected);
    for (uint turn = 0; !done && turn < kTurns; ++turn) {
        if (patient != 0 || turn > kEager)
            [[unroll]] for (uint i = 0; i < kPause * (1 + patient); ++i) atomicAdd(Number(push.p.own + kMeetPause).value, 1u);
        done = all_came(expected);
    }
    if (patient == 0) {
        Number(push.p.own + kMeetGroups).value = done ? 0u : kMeetPatience;
    } else if (!done && gl_WorkGroupID.x == kMeetPatience - 1) {
        Number(push.p.own + kMeetAlone).value = 1u;
    }
}
