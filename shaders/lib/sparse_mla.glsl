// Sparse MLA of one (token, head group, split) without matrix units: the part that decode
// and prefill share. Per head, over the valid rows k_j of the split, in base 2:
//
//   s_j = scale_log2e * dot(q, k_j),  m = max s_j,  l = sum exp2(s_j - m),  acc = sum exp2(s_j - m) k_j
//
// The including kernel declares, before the include: constants HG (heads per workgroup)
// and TILE (rows per step, a divisor of 128, HG * TILE <= 128), storage buffers q (uvec2
// words[]), dst (uvec2), part_out (vec4) and part_ml (vec4), pc.heads, pc.splits,
// pc.scale_log2e, and
//
//   bool mla_locate(uint t, uint j, out uvec2 place)          entry j of token t; false: masked
//   void mla_load(uint j, uvec2 place, uint unit, out uvec2 w[8])   dims 32*unit .. +31 of that row as bf16 pairs
//
// 128 invocations. A step: each invocation loads its share of one row straight into
// registers, stores it for the others and takes the dot products with HG heads; the
// partial dots are summed in a fixed order; then every invocation adds 4 dims of all TILE
// rows to its accumulators. A masked row is zero in shared memory and its weight is 0, so
// nothing that lies at a masked slot is ever read.
// Shared memory, bytes: HG*1024 + TILE*1040 + 512*HG + 4096/TILE + HG*(8*TILE + 4).
#ifndef LIB_SPARSE_MLA_GLSL
#define LIB_SPARSE_MLA_GLSL
#include "bf16.glsl"
#include "mla_finish.glsl"

const uint MLA_LANES = 128u;
const uint MLA_UNITS = 16u;                    // units of 32 dims in a row
const uint MLA_PARTS = MLA_LANES / TILE;       // invocations that share a row
const uint MLA_ROW = 130u;                     // 8-byte words per stored row, padded against bank conflicts
const uint MLA_PART_STRIDE = HG * TILE + 8u;

shared uvec2 q_s[HG * 128u];                   // [HG, 512] bf16
shared uvec2 kv_s[TILE * MLA_ROW];             // [TILE, 512] bf16
shared float dot_s[MLA_PARTS * MLA_PART_STRIDE]; // [parts, HG, TILE]
shared float s_s[HG * TILE];
shared float p_s[TILE * HG];                   // [TILE, HG]
shared float head_s[HG];                       // rescale factor, later the final m

struct MlaHead { float m; float l; };

float mla_pair(uvec2 a, uvec2 b, float sum) {
    vec2 a0 = bf16_unpack2(a.x), b0 = bf16_unpack2(b.x), a1 = bf16_unpack2(a.y), b1 = bf16_unpack2(b.y);
    sum = fma(a0.x, b0.x, sum);
    sum = fma(a0.y, b0.y, sum);
    sum = fma(a1.x, b1.x, sum);
    return fma(a1.y, b1.y, sum);
}

// mla_attend: positions [begin, end) of token t for the heads from head0 on. Writes the
// finished rows when there is one split, else the partial ones; returns through done_m and
// done_l, at invocation h < HG of the workgroup, what the caller's lse and maximum need.
void mla_attend(uint t, uint head0, uint split, uint begin, uint end, out float done_m, out float done_l) {
    const uint lane = gl_LocalInvocationID.x;
    const uint slot = lane % TILE;
    const uint part = lane / TILE;
    const uint pair_head = lane / TILE; // lane < HG*TILE also owns the score of (pair_head, slot)
    const bool scores = lane < HG * TILE;

    for (uint i = lane; i < HG * 128u; i += MLA_LANES) {
        uint head = head0 + i / 128u;
        q_s[i] = head < pc.heads ? q.words[(t * pc.heads + head) * 128u + i % 128u] : uvec2(0u);
    }
    vec4 acc[HG];
    [[unroll]] for (uint h = 0u; h < HG; h++) acc[h] = vec4(0.0);
    float m = MLA_FLOOR; // of pair_head, the same in all of its lanes
    float l = 0.0;       // this lane's share of the sum

    for (uint j0 = begin; j0 < end; j0 += TILE) {
        uvec2 place = uvec2(0u);
        const uint j = j0 + slot;
        bool valid = j < end;
        if (valid) valid = mla_locate(t, j, place);

        barrier(); // the previous step's readers of kv_s and p_s; at first, the writers of q_s
        float dots[HG];
        [[unroll]] for (uint h = 0u; h < HG; h++) dots[h] = 0.0;
        // Kept as a loop, though it may have one round: without, RADV loads so much ahead that it spills.
        [[dont_unroll]] for (uint unit = part; unit < MLA_UNITS; unit += MLA_PARTS) {
            uvec2 w[8];
            if (valid) {
                mla_load(j, place, unit, w);
            } else {
                [[unroll]] for (uint e = 0u; e < 8u; e++) w[e] = uvec2(0u);
            }
            [[unroll]] for (uint e = 0u; e < 8u; e++) kv_s[slot * MLA_ROW + unit * 8u + e] = w[e];
            [[unroll]] for (uint h = 0u; h < HG; h++) {
                [[unroll]] for (uint e = 0u; e < 8u; e++) dots[h] = mla_pair(q_s[h * 128u + unit * 8u + e], w[e], dots[h]);
            }
        }
        [[unroll]] for (uint h = 0u; h < HG; h++) dot_s[part * MLA_PART_STRIDE + h * TILE + slot] = dots[h];
        barrier();
        float s = 0.0;
        if (scores) {
            for (uint i = 0u; i < MLA_PARTS; i++) s += dot_s[i * MLA_PART_STRIDE + lane];
            s = valid ? s * pc.scale_log2e : MLA_FLOOR;
            s_s[lane] = s;
        }
        barrier();
        if (scores) {
            float top = m;
            for (uint i = 0u; i < TILE; i++) top = max(top, s_s[pair_head * TILE + i]);
            float rescale = exp2(max(m - top, -300.0));
            float p = valid ? exp2(max(s - top, -300.0)) : 0.0;
            l = l * rescale + p;
            m = top;
            p_s[slot * HG + pair_head] = p;
            if (slot == 0u) head_s[pair_head] = rescale;
        }
        barrier();
        [[unroll]] for (uint h = 0u; h < HG; h++) acc[h] *= head_s[h];
        for (uint i = 0u; i < TILE; i++) {
            uvec2 w = kv_s[i * MLA_ROW + lane];
            vec4 v = vec4(bf16_unpack2(w.x), bf16_unpack2(w.y));
            [[unroll]] for (uint h = 0u; h < HG; h++) acc[h] += p_s[i * HG + h] * v;
        }
    }

    barrier();
    if (scores) s_s[lane] = l;
    if (scores && slot == 0u) head_s[pair_head] = m;
    barrier();
    [[unroll]] for (uint h = 0u; h < HG; h++) {
        const uint head = head0 + h;
        if (head >= pc.heads) continue;
        float sum = 0.0;
        for (uint i = 0u; i < TILE; i++) sum += s_s[h * TILE + i];
        if (lane == h) {
            done_m = head_s[h];
            done_l = sum;
        }
        if (pc.splits == 1u) {
            float f = mla_factor(head_s[h], sum, mla_sink_of(head));
            vec4 o = sum == 0.0 ? vec4(0.0) : acc[h] * f;
            dst.words[(t * pc.heads + head) * 128u + lane] = uvec2(bf16_pack2(o.x, o.y), bf16_pack2(o.z, o.w));
        } else {
            const uint row = (t * pc.splits + split) * pc.heads + head;
            part_out.rows[row * 128u + lane] = acc[h];
            if (lane == 0u) part_ml.rows[row] = vec4(head_s[h], sum, head_s[h], 0.0);
        }
    }
}

#endif
