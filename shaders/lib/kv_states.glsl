// States of a compressor's tokens, for what stores and what compresses them: constants 0 to 5 and
// bindings 0, 2, 7, 8 and 9 of kv_compress.comp, its push block, and save, with SAVE. A kernel
// that includes this declares the other bindings.
#ifndef LIB_KV_STATES_GLSL
#define LIB_KV_STATES_GLSL
#include "state_page.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint PAGE = 64; // of entries
layout(constant_id = 2) const uint STATE_PAGE = 4;
layout(constant_id = 3) const uint RATIO = 4;
layout(constant_id = 4) const uint OVERLAP = 1; // 1: a window is two groups, older and newer half have channels of their own
layout(constant_id = 5) const uint DIM = 512;

const uint HALVES = OVERLAP != 0u ? 2u : 1u;
const uint CHANNELS = HALVES * DIM; // kv values, and scores, of a token
const uint UNITS = CHANNELS / 4u;   // 16-byte units of a token's kv values, and of its scores

layout(std430, set = 0, binding = 0) readonly buffer Positions { int positions[]; };
layout(std430, set = 0, binding = 2) readonly buffer StateSlots { uvec2 state_slots[]; };

layout(push_constant) uniform Push {
    ADDRESS state_addr;
    ADDRESS pool_addr;
    ADDRESS kv_score_addr; // with SAVE
    uint state_units; // 16-byte units per page
    uint state_pages;
    uint pool_stride; // bytes per page
    uint pool_pages;
    uint tokens;      // T
    uint each;        // tokens of a workgroup
    uint requests;    // R
    uint width;       // W
    uint rope_rows;
    uint norm_bf16;   // 1 if norm is bf16
    float eps;
    uint has_latent;
    ADDRESS latent_addr;
} pc;
layout(std430, set = 0, binding = 7) readonly buffer Ape { vec4 ape[]; };
STATE_POOL(kv_score, 8)
#ifdef SAVE
STATE_POOL_BOTH(state, 9)
#else
STATE_POOL(state, 9)
#endif

#ifdef SAVE
// save: the state of token i.
void save(uint i) {
    const uint EACH = (2u * UNITS + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x;
    const uvec2 slot = state_slots[i];
    const int p = positions[i];
    const uint page = slot.x / STATE_PAGE;
    if (slot.y != 0u || page >= pc.state_pages || p < 0) return; // a negative slot has a high word
    const uint to = page * pc.state_units + (slot.x % STATE_PAGE) * (2u * UNITS);
    vec4 x[EACH], a[EACH];
    [[unroll]] for (uint n = 0u; n < EACH; n++) {
        const uint unit = min(n * gl_WorkGroupSize.x + gl_LocalInvocationID.x, 2u * UNITS - 1u);
        x[n] = kv_score_load(i * (2u * UNITS) + unit);
        a[n] = ape[uint(p) % RATIO * UNITS + unit % UNITS];
    }
    [[unroll]] for (uint n = 0u; n < EACH; n++) {
        const uint unit = n * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
        if (unit < 2u * UNITS) state_store(to + unit, unit < UNITS ? x[n] : x[n] + a[n]);
    }
}
#endif

#endif
