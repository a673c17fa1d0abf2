// The next draft of each block, and the code of it that the one after it depends on:
//   draft[r][i] = argmax_v(logits[r*block + i][v] + sums[r][v]), i = place-1
//   x[r] = code[draft[r][i]]
// Of equal ones the smallest v. At place 0 there is only x, of the block's first token; at place
// block no x.
// Bindings: 0 step ([2] blocks, [4+t] ids), 1 logits [T, vocab] f32, 2 sums [blocks, vocab] f32,
//   3 code [vocab, rank] bf16 or f32, 4 x [blocks, x_quads] quads of bf16 by place(),
//   5 draft [T] u32.
// Workgroup: a block.
// Shared memory: 2048 B.  Features: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/activations.glsl"

layout(local_size_x = 256) in;

layout(push_constant) uniform Push {
    uint vocab, block, place;
    uint rank, x_quads;
    uint f32; // 1: so is code
} pc;

layout(std430, set = 0, binding = 0) readonly buffer Step { uint v[]; } step_;
layout(std430, set = 0, binding = 1) readonly buffer Logits { float v[]; } logits;
layout(std430, set = 0, binding = 2) readonly buffer Sums { float v[]; } sums;
layout(std430, set = 0, binding = 3) readonly buffer Code { uint v[]; } code;
layout(std430, set = 0, binding = 4) writeonly buffer X { uvec4 v[]; } x;
layout(std430, set = 0, binding = 5) writeonly buffer Draft { uint v[]; } draft;

shared float best_s[256];
shared uint at_s[256];

// most returns the token of the largest sum.
uint most(uint r) {
    const uint tid = gl_LocalInvocationIndex, row = (r * pc.block + pc.place - 1u) * pc.vocab;
    uint at = min(tid, pc.vocab - 1u);
    float best = logits.v[row + at] + sums.v[r * pc.vocab + at];
    for (uint v = tid + 256u; v < pc.vocab; v += 256u) {
        const float sum = logits.v[row + v] + sums.v[r * pc.vocab + v];
        if (sum > best) {
            best = sum;
            at = v;
        }
    }
    best_s[tid] = best;
    at_s[tid] = at;
    barrier();
    [[unroll]] for (uint n = 128u; n > 0u; n /= 2u) {
        if (tid < n) {
            const float other = best_s[tid + n];
            if (other > best_s[tid] || other == best_s[tid] && at_s[tid + n] < at_s[tid]) {
                best_s[tid] = other;
                at_s[tid] = at_s[tid + n];
            }
        }
        barrier();
    }
    return at_s[0];
}

void main() {
    const uint tid = gl_LocalInvocationIndex, r = gl_WorkGroupID.x;
    if (r >= step_.v[2]) return;
    uint last = step_.v[4u + r * pc.block];
    if (pc.place > 0u) {
        last = most(r);
        if (tid == 0u) draft.v[r * pc.block + pc.place - 1u] = last;
    }
    if (pc.place == pc.block) return;
    for (uint q = tid; q < pc.rank / 8u; q += 256u) {
        const uint c = last * pc.rank + 8u * q;
        uvec4 word;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            word[i] = pc.f32 == 0u ? code.v[c / 2u + i]
                : bf16_pack2(uintBitsToFloat(code.v[c + 2u * i]), uintBitsToFloat(code.v[c + 2u * i + 1u]));
        }
        x.v[r * pc.x_quads + place(q)] = word;
    }
}
