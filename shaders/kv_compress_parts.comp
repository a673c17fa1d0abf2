#version 460
// Save and compress, a long window's entry by several workgroups: what kv_compress_save.comp computes with 512 invocations, to the same bits,
//   where an entry would take one workgroup longer than what runs beside it.
//   Workgroups have COLUMNS channels each, and an invocation one channel of a chunk of rows. They store v [T, DIM] f32 at pooled_addr and count
//   themselves at arrived_addr [T] u32, which is 0 between launches; the one that comes last does what takes all channels. Nobody waits for
//   another workgroup, and whichever is last computes the same.
// Bindings:  those of kv_compress_save_da.
// Workgroup: 8192/invocations parts of an entry, pc.each workgroups for each of them, and behind these one for the state of each token.
//   Every workgroup of entries looks which tokens complete one; those of the same part take them by turns.
// Shared memory: 12*invocations + 8*DIM/4 + 2292 bytes.  Features: bufferDeviceAddress, shaderInt64.
// Constants: those of kv_compress.comp, with 8 for CHUNK and 128 for RATIO; 0 invocations: 128 to 1024.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_KHR_memory_scope_semantics : require
#define KV_SAVE
#define KV_PARTS
#include "lib/kv_compress.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) coherent writeonly buffer PooledPut { float v; };
layout(buffer_reference, std430, buffer_reference_align = 16) coherent readonly buffer PooledSeen { vec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Arrived { uint v; };

const uint MOST = 128u;               // tokens of a launch
const uint ORDER = 4u;                // groups of chunks that kv_compress.comp has with 512 invocations, whose sums are merged at the end
const uint CHUNKS = WINDOW / CHUNK;
const uint COLUMNS = gl_WorkGroupSize.x / CHUNKS;
const uint PARTS = DIM / COLUMNS;

// By chunk, then channel: the largest score, and sums relative to the largest of a group's chunks so far.
shared float top_of[gl_WorkGroupSize.x];
shared float weight_of[gl_WorkGroupSize.x];
shared float sum_of[gl_WorkGroupSize.x];
shared uint wanted[MOST / 32u]; // bit i: token i completes an entry; what belongs to it:
shared int position_of[MOST];
shared uint request_of[MOST];
shared uint slot_of[MOST];
shared uint is_last;

// look: which tokens complete an entry.
void look() {
    const uint self = gl_LocalInvocationID.x;
    int p = 0;
    uint request = 0u, slot = 0u;
    const bool ends = self < min(pc.tokens, MOST) && completes(self, p, request, slot);
    if (self < MOST / 32u) wanted[self] = 0u;
    barrier();
    if (ends) {
        atomicOr(wanted[self / 32u], 1u << (self % 32u));
        position_of[self] = p;
        request_of[self] = request;
        slot_of[self] = slot;
    }
    barrier();
}

// joined: v of a channel, from its chunks, in the order of kv_compress.comp: those of a group one after the other, then groups by halves.
float joined(uint column) {
    vec4 top = vec4(-3.4e38), weight = vec4(0.0), sum = vec4(0.0); // of each group
    [[dont_unroll]] for (uint n = 0u; n < CHUNKS; n += ORDER) {
        const uvec4 at = (uvec4(0u, 1u, 2u, 3u) + n) * COLUMNS + column;
        const vec4 higher = max(top, vec4(top_of[at.x], top_of[at.y], top_of[at.z], top_of[at.w]));
        const vec4 keep = real_exp(top - higher);
        weight = fma(weight, keep, vec4(weight_of[at.x], weight_of[at.y], weight_of[at.z], weight_of[at.w]));
        sum = fma(sum, keep, vec4(sum_of[at.x], sum_of[at.y], sum_of[at.z], sum_of[at.w]));
        top = higher;
    }
    [[dont_unroll]] for (uint n = 0u; n < 2u; n++) {
        const vec2 higher = max(top.xy, top.zw);
        const vec4 keep = real_exp(top - higher.xyxy);
        weight.xy = fma(weight.zw, keep.zw, weight.xy * keep.xy);
        sum.xy = fma(sum.zw, keep.zw, sum.xy * keep.xy);
        top.xy = higher;
        weight.z = weight.y; // then group 1 to group 0
        sum.z = sum.y;
        top.z = top.y;
    }
    precise float v = sum.x * real_rcp(weight).x;
    return v;
}

// come: all channels of token i are stored, and this workgroup is the one to go on. The same for all invocations.
bool come(uint i) {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    if (gl_LocalInvocationID.x == 0u) {
        const uint64_t arrived = pc.arrived_addr + i * 4u;
        const uint before = atomicAdd(Arrived(arrived).v, 1u, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        is_last = before + 1u >= PARTS ? 1u : 0u;
        if (is_last != 0u) Arrived(arrived).v = 0u; // for the next launch
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    return is_last != 0u;
}

// compress_part: a part of the channels of token i, which completes an entry, and the entry if all others are there.
void compress_part(uint i, uint part) {
    const uint self = gl_LocalInvocationID.x, chunk = self / COLUMNS, column = self % COLUMNS, lane = self % LANES;
    const int p = position_of[i];
    const uint request = request_of[i];
    const bool mine = self < LANES;
    uvec4 gain = uvec4(0u);
    vec4 turn = vec4(0.0);
    if (mine) {
        gain = gains(lane);
        turn = turns(p, lane);
    }
    self_ = i;
    fresh_ = is_fresh(1u, p, request) ? 2u : 1u;
    if (fresh_ > 1u) count_fresh(p, request);
    Chunk c;
    load(request, p, chunk * CHUNK, (part * COLUMNS + column) / 4u, c);
    blank(c);
    float top = highest(c, vec4(-3.4e38)).x;
    top_of[self] = top;
    barrier();
    for (uint n = chunk % ORDER; n < chunk; n += ORDER) top = max(top, top_of[n * COLUMNS + column]);
    vec4 w, y;
    weigh(c, vec4(top), w, y);
    weight_of[self] = w.x;
    sum_of[self] = y.x;
    barrier();
    const uint64_t pooled = pc.pooled_addr + uint64_t(i) * (4u * DIM);
    if (self < COLUMNS) PooledPut(pooled + (part * COLUMNS + column) * 4u).v = joined(column);
    if (!come(i)) return;
    vec4 v = vec4(0.0);
    if (mine) v = PooledSeen(pooled + lane * 16u).v;
    finish(mine, mine, self / LANES, lane, v, gain, turn, slot_of[i]);
}

void main() {
    if (gl_WorkGroupID.x >= PARTS * pc.each) {
        save(gl_WorkGroupID.x - PARTS * pc.each);
        return;
    }
    look();
    const uint part = gl_WorkGroupID.x % PARTS;
    uint turn = gl_WorkGroupID.x / PARTS; // how many entries others take first
    [[dont_unroll]] for (uint n = 0u; n < MOST; n += 32u) {
        uint bits = wanted[n / 32u];
        [[dont_unroll]] while (bits != 0u) {
            if (turn == 0u) {
                compress_part(n + findLSB(bits), part);
                barrier(); // the next one takes what is shared
            }
            turn = (turn == 0u ? pc.each : turn) - 1u;
            bits &= bits - 1u;
        }
    }
}
