// Turns 128 numbers of each workgroup round, with a fault on demand.
// Bindings: in_ and out_ [n] u32. Shared memory: 512 B. planted.spv is made by
//
//	glslc --target-env=vulkan1.3 -O -o planted.spv planted.comp
#version 460
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint FAULT = 0u;
// FAULT 1: no barrier, 2: no bound, 3: shared memory is read that was not written, 4: two waves
// write one word, so that all get the number of the one that came last.
layout(set = 0, binding = 0) readonly buffer In { uint v[]; } in_;
layout(set = 0, binding = 1) writeonly buffer Out { uint v[]; } out_;
layout(push_constant) uniform Push { uint n; } pc;
shared uint turned[128];

void main() {
    const uint me = gl_LocalInvocationIndex, at = gl_WorkGroupID.x * 128u + me;
    if (FAULT < 3u || FAULT == 3u && me < 64u) turned[me] = FAULT == 2u || at < pc.n ? in_.v[at] : 0u;
    if (FAULT == 4u && (me & 63u) == 0u) turned[0] = me;
    if (FAULT != 1u) barrier();
    if (at < pc.n) out_.v[at] = turned[FAULT == 4u ? 0u : 127u - me];
}
