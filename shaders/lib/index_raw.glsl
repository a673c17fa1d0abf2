// Turns and quantises the indexer's queries on their way to shared memory, for
// idx_logits_lanes.comp with RAW_QUERIES.
//
// RAW_PARTS invocations have a head each, and each of them 8 neighbouring numbers of either half of
// it, so that all have as much to turn. Codes, scales and weights have the bits of
// idx_query_quant.comp, whose functions these are.
#ifndef LIB_INDEX_RAW_GLSL
#define LIB_INDEX_RAW_GLSL

const uint RAW_PARTS = INDEX_DIM / 2u / 8u;
const uint TURNS = RAW_PARTS * HG > THREADS ? 2u : 1u; // that invocations take to all heads
const uint ROW_PAIRS = FORMAT == INDEX_FP8 ? 16u : 8u; // pairs of words of a row of codes

#ifdef PICKS // codes are where bins will be
shared uint pool_s[POOL > 2u * HG * ROW_PAIRS ? POOL : 2u * HG * ROW_PAIRS];
uvec2 code_at(uint i) { return uvec2(pool_s[2u * i], pool_s[2u * i + 1u]); }
#else
shared uvec2 code_s[HG * ROW_PAIRS];
#define code_at(i) code_s[i]
#endif
shared uint scale_s[HG]; // of MXFP4

uvec4 raw_at(uint i) { return Read_uvec4(pc.q_addr).v[i]; }
int position_at(uint i) { return Read_int(pc.q_scale_addr).v[i]; }
uint raw_weights_at(uint i) { return Read_uint(pc.weights_addr).v[i]; }
uvec4 table_at(uint i) { return Read_uvec4(pc.table_addr).v[i]; }
ROPE_TABLE4(table)

uvec4 low_[TURNS], high_[TURNS]; // of a head of each turn 8 numbers that stay, and 8 that turn
vec4 near_, far_;                // by these cosines and sines
uint raw_weight_[TURNS];

uint raw_head(uint turn) { return (turn * THREADS + gl_LocalInvocationIndex) / RAW_PARTS; }
uint raw_part() { return gl_LocalInvocationIndex % RAW_PARTS; }

// ask_raw: for queries, before anything is known of the keys.
void ask_raw() {
    [[unroll]] for (uint turn = 0u; turn < TURNS; turn++) {
        const uint row = t_ * pc.heads + min(raw_head(turn), pc.heads - 1u);
        low_[turn] = raw_at(row * 2u * RAW_PARTS + raw_part());
        high_[turn] = raw_at(row * 2u * RAW_PARTS + RAW_PARTS + raw_part());
        raw_weight_[turn] = raw_weights_at(row >> 1) >> (16u * (row & 1u));
    }
    table_cos_sin4(uint(clamp(position_at(t_), 0, int(pc.tokens) - 1)), raw_part() * 4u, false, near_, far_);
}

// most: the largest of 8 numbers, bf16 bits without sign.
uint most(uvec4 w) { return max4(max(w & 0x7FFFu, (w >> 16) & 0x7FFFu)); }

// quantise_head: of head `head`, the first of low_, high_ and raw_weight_.
void quantise_head(uint head) {
    const uint part = raw_part();
    high_[0] = rope_bf16_words(high_[0], near_, far_);
    // Half of a head's invocations have a block of MXFP4 in either half of it; of FP8 a head is a
    // block.
    uint low = most(low_[0]), high = most(high_[0]);
    if (!QUERY_FP4) low = max(low, high);
    [[unroll]] for (uint bit = 1u; bit < (QUERY_FP4 ? RAW_PARTS / 2u : RAW_PARTS); bit *= 2u) {
        low = max(low, subgroupShuffleXor(low, bit));
        if (QUERY_FP4) high = max(high, subgroupShuffleXor(high, bit));
    }
    uint sb = scale_byte(low);
    const uint sb_high = QUERY_FP4 ? scale_byte(high) : sb;
    uint scales = sb | (sb_high << 16); // blocks 0 and 2, or 1 and 3
    if (QUERY_FP4) scales |= subgroupShuffleXor(scales, RAW_PARTS / 2u) << 8;
    if (head >= HG) return;

    uvec4 w = low_[0];
    [[dont_unroll]] for (uint unit = part; unit < 2u * RAW_PARTS; unit += RAW_PARTS) {
        const uvec2 codes = encode(w, low, sb);
#ifdef PICKS
        if (QUERY_FP4) pool_s[2u * head * ROW_PAIRS + unit] = codes.x;
        else {
            pool_s[2u * (head * ROW_PAIRS + unit)] = codes.x;
            pool_s[2u * (head * ROW_PAIRS + unit) + 1u] = codes.y;
        }
#else
        if (QUERY_FP4) code_s[head * ROW_PAIRS + unit / 2u][unit % 2u] = codes.x;
        else code_s[head * ROW_PAIRS + unit] = codes;
#endif
        w = high_[0];
        if (QUERY_FP4) {
            low = high;
            sb = sb_high;
        }
    }
    if (part == 0u) {
        precise float x = bf16_decode(raw_weight_[0]);
        if (!QUERY_FP4) x *= ue8m0_scale(sb);
        x *= pc.softmax_scale;
        x *= pc.head_scale;
        if (QUERY_FP4) x *= cm_row_scale(scales);
        weight_s[head] = head < pc.heads ? x : 0.0;
        scale_s[head] = scales;
    }
}

// quantise_queries: has loops where there could be copies, because in a step code comes from
// memory. A barrier follows.
void quantise_queries() {
    [[dont_unroll]] for (uint turn = 0u; turn < TURNS; turn++) {
        quantise_head(raw_head(turn));
        low_[0] = low_[TURNS - 1u];
        high_[0] = high_[TURNS - 1u];
        raw_weight_[0] = raw_weight_[TURNS - 1u];
    }
}

// store_raw: decodes them by way of matrices, as idx_logits_lanes.comp does those of memory,
// but by single loads of a lane, so that there are shares for twice as many subgroups.
void store_raw() {
    const uint TOGETHER = STEPS / LOADS;
    [[dont_unroll]] for (uint i = gl_SubgroupID; i < HEAD_TILES * LOADS; i += SUBGROUPS) {
        const uint head0 = i / LOADS * CM_N, load = i % LOADS;
        CM_B made[TOGETHER];
        [[unroll]] for (uint j = 0u; j < HEADS; j++) {
            const uint head = head0 + row_of(j), at = head * ROW_PAIRS + (WORDS == 2u ? part_ : (load * P + part_) * 2u);
            uvec4 codes[LOADS];
            codes[0] = WORDS == 2u ? code_at(at).xyxy : uvec4(code_at(at), code_at(at + 1u));
            if (head >= pc.heads) codes[0] = uvec4(0u);
            f16vec2 scale = f16vec2(1.0);
            if (FORMAT != INDEX_FP8) scale = cm_fp4_scale(scale_s[head], block_of());
            [[unroll]] for (uint k = 0u; k < TOGETHER; k++)
                [[unroll]] for (uint e = 0u; e < EACH; e++) made[k][j * EACH + e] = element(codes, scale, k * EACH + e);
        }
        [[unroll]] for (uint k = 0u; k < TOGETHER; k++)
            coopMatStore(made[k], query_s, head0 * PITCH + (load * TOGETHER + k) * (CM_K / 8u), PITCH,
                gl_CooperativeMatrixLayoutColumnMajor);
    }
}

#endif
