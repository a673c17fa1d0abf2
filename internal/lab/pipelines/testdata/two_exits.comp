// A loop with two exits inside another one. RADV of Mesa 26.1 and 26.2 leaves out the block at one
// exit, and the branch there goes to the program's first word, as
// findings/radv-drops-a-loop-exit.sh shows. Binding: x [64 (n + 2)] u32. No shared memory.
// two_exits.spv is made by
//
//	glslc --target-env=vulkan1.3 -O -o two_exits.spv two_exits.comp
#version 460
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer X { uint v[]; } x;
layout(push_constant) uniform Push { uint n, again; } pc;

void main() {
    const uint id = gl_LocalInvocationIndex;
    uint i = 0u, sum = 0u;
    while (i < pc.n) {
        const uint first = i;
        for (;;) {
            if (pc.again != 0u && i != first) break;
            sum += x.v[id + 64u * (i & 3u)];
            i++;
            if (i >= pc.n) break;
            x.v[id + 64u * (i + 2u)] = sum;
            if (sum > 100u) x.v[id] = i;
        }
    }
    x.v[id] = sum;
}
