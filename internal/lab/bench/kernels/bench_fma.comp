#version 460
// Peak of f32 multiply-adds without matrix units: 16 independent chains of vec4
// per invocation, rounds times. FLOP per invocation = 2 * 4 * 16 * rounds.
//   0 out [invocations] f32, so that nothing is optimised away
// One workgroup is 256 invocations. No shared memory, no features beyond Vulkan 1.2.
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) restrict writeonly buffer Out { float sum[]; };
layout(push_constant) uniform Push { uint rounds; float factor; } pc;

void main() {
    vec4 a[16];
    [[unroll]] for (int i = 0; i < 16; i++) a[i] = vec4(gl_LocalInvocationIndex + i);
    for (uint r = 0; r < pc.rounds; r++)
        [[unroll]] for (int i = 0; i < 16; i++) a[i] = fma(a[i], vec4(pc.factor), vec4(1.0));
    vec4 s = vec4(0);
    [[unroll]] for (int i = 0; i < 16; i++) s += a[i];
    sum[gl_GlobalInvocationID.x] = s.x + s.y + s.z + s.w;
}
