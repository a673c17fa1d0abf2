// Orders the pairs of token and expert by expert, so that an expert's weights are read once for all
// its tokens: the plan of lib/rows.glsl, with items of at most `most` pairs.
// Bindings: 0 step ([0] tokens), 1 chosen [T, per] u32, 2 plan.
// Workgroup: the only one. Invocation i has experts i*EACH and on.
// Shared memory: 8192 B.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint EACH = 1u;

layout(push_constant) uniform Push {
    uint per, most;
    uint order_at; // in the plan
} pc;

layout(std430, set = 0, binding = 0) readonly buffer Step { uint v[]; } step_;
layout(std430, set = 0, binding = 1) readonly buffer Chosen { uint v[]; } chosen;
layout(std430, set = 0, binding = 2) writeonly buffer Plan { uint v[]; } plan;

shared uint some_s[1024];
shared uvec2 before_s[512]; // pairs, items: of the experts in front, in two turns

void main() {
    const uint tid = gl_LocalInvocationIndex, mine = tid * EACH, pairs = step_.v[0] * pc.per;
    uint count[EACH];
    [[unroll]] for (uint i = 0u; i < EACH; i++) count[i] = 0u;
    for (uint first = 0u; first < pairs; first += 1024u) {
        for (uint p = tid; p < 1024u; p += 256u) some_s[p] = first + p < pairs ? chosen.v[first + p] : 0xFFFFFFFFu;
        barrier();
        for (uint p = 0u; p < min(1024u, pairs - first); p++) {
            [[unroll]] for (uint i = 0u; i < EACH; i++) count[i] += some_s[p] == mine + i ? 1u : 0u;
        }
        barrier();
    }
    uvec2 total = uvec2(0u);
    [[unroll]] for (uint i = 0u; i < EACH; i++) total += uvec2(count[i], (count[i] + pc.most - 1u) / pc.most);
    before_s[tid] = total;
    barrier();
    uint turn = 0u;
    for (uint n = 1u; n < 256u; n *= 2u) { // inclusive sums
        before_s[(1u - turn) * 256u + tid] = before_s[turn * 256u + tid] + (tid >= n ? before_s[turn * 256u + tid - n] : uvec2(0u));
        turn = 1u - turn;
        barrier();
    }
    if (tid == 255u) plan.v[0] = before_s[turn * 256u + tid].y;
    const uvec2 before = before_s[turn * 256u + tid] - total;
    uint next[EACH], at = before.x, item = before.y;
    [[unroll]] for (uint i = 0u; i < EACH; i++) {
        next[i] = at;
        for (uint k = 0u; k < count[i]; k += pc.most) {
            plan.v[4u + 3u * item] = mine + i;
            plan.v[5u + 3u * item] = at + k;
            plan.v[6u + 3u * item] = min(pc.most, count[i] - k);
            item++;
        }
        at += count[i];
    }
    for (uint first = 0u; first < pairs; first += 1024u) {
        barrier();
        for (uint p = tid; p < 1024u; p += 256u) some_s[p] = first + p < pairs ? chosen.v[first + p] : 0xFFFFFFFFu;
        barrier();
        for (uint p = 0u; p < min(1024u, pairs - first); p++) {
            [[unroll]] for (uint i = 0u; i < EACH; i++) {
                if (some_s[p] == mine + i) plan.v[pc.order_at + next[i]++] = first + p;
            }
        }
    }
}
