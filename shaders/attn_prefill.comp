// Sparse MLA over a bf16 workspace: prefill, and the second pass of the two-pass decode. Token t
// attends rows indices[t][j], j < lens[t] (without lens all of them). A row outside the workspace
// is never read. Per head:
//   s_j = scale*dot(q, k_j),  lse = ln sum exp(s_j),  max_logits = max s_j
//   out = sum exp(s_j) k_j / (sum exp(s_j) + exp(sink))
// Bindings: 0 q [T,H,512] bf16; 1 indices [T,width] i32; 2 lens [T] i32; 3 sink [H] f32;
//   4 dst [T,H,512] bf16; 5 max_logits [T,H] f32; 6 lse [T,H] f32; 7 part_out [T,splits,H,512] f32;
//   8 part_ml [T,splits,H] (m, l, max, 0) f32; 9 kv [rows,512] bf16 (with ADDRESSED by address).
// With SOME_TOKENS a token with a negative length is left alone: nothing of it is written.
// Workgroup: HG heads (x) of one of `splits` ranges of entries (y) of token z. With one split it
//   finishes the row, else attn_merge does.
// Constants: 0 HG, 1 TILE, 2 invocations, 16*HG.
// Shared memory: 44740 bytes at HG 16, TILE 16; lib/sparse_mla.glsl has the sum.
// Features: none; with ADDRESSED bufferDeviceAddress, shaderInt64; with DOT2 shaderFloat16,
//   shaderMixedFloatDotProductFloat16AccFloat32.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "lib/kv_page.glsl"
#include "lib/bf16.glsl"
#include "lib/mla_finish.glsl"

layout(local_size_x = 64, local_size_x_id = 2) in;
layout(constant_id = 0) const uint HG = 4u;
layout(constant_id = 1) const uint TILE = 8u;

#include "lib/mla_prefill.glsl"

#ifdef ADDRESSED
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer KvRead4 { uvec4 v; };
uvec4 kv_unit(uint row, uint unit) { return KvRead4(pc.kv_addr + (uint64_t(row) * 64u + unit) * 16u).v; }
#else
layout(std430, set = 0, binding = 9) readonly buffer Kv { uvec4 units[]; } kv;
uvec4 kv_unit(uint row, uint unit) { return kv.units[row * 64u + unit]; }
#endif

float mla_sink_of(uint head) { return (pc.flags & HAS_SINK) != 0u ? mla_sink(sink.v[head]) : MLA_NO_SINK; }

void mla_done(uint t, uint head, float m, float l, float top) {
    if ((pc.flags & WANT_LSE) != 0u) lse.v[t * pc.heads + head] = mla_lse(m, l);
    if ((pc.flags & WANT_MAX) != 0u) max_logits.v[t * pc.heads + head] = mla_max_logit(top, l);
}

int mla_entry(uint t, uint j) { return indices.v[t * pc.width + j]; }

const uint MLA_LANES = 16u * HG / TILE, MLA_UNITS = 64u / MLA_LANES;

struct MlaRow { uvec4 units[MLA_UNITS]; };

bool mla_fetch(uint j, int entry, uint c, out MlaRow w) {
    [[unroll]] for (uint i = 0u; i < MLA_UNITS; i++) w.units[i] = uvec4(0u);
    if (uint(entry) >= pc.rows) return false; // or negative
    [[unroll]] for (uint i = 0u; i < MLA_UNITS; i++) w.units[i] = kv_unit(uint(entry), i * MLA_LANES + c);
    return true;
}

uvec4 mla_unit(MlaRow w, uint c, uint i) { return w.units[i]; }

#include "lib/sparse_mla.glsl"

void main() {
    const uint head0 = gl_WorkGroupID.x * HG, split = gl_WorkGroupID.y, t = gl_WorkGroupID.z;
    if ((pc.flags & SOME_TOKENS) != 0u && lens.v[t] < 0) return; // left alone
    const uint n = (pc.flags & HAS_LENS) != 0u ? uint(clamp(lens.v[t], 0, int(pc.width))) : pc.width;
    const uint tiles = (n + TILE - 1u) / TILE;
    const uint chunk = (tiles + pc.splits - 1u) / pc.splits * TILE;
    mla_attend(t, head0, split, min(split * chunk, n), min((split + 1u) * chunk, n));
}
