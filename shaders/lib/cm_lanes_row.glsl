// One invocation's share of a row of an FP8 cache on its way to shared memory; goes with lib/cm_mla_lanes.glsl, which see, and with
// CM_ONE_BUFFER with lib/cm_mla_ring.glsl. ROW_PARTS is 4, 8 or 16.
//
// A row is 56 words of 8 E4M3 bytes and 16 words of 4 bf16. Its invocations take words of codes in turn, then half a word each where
// that is what is left, then words of bf16: every one issues the same loads, and eight neighbours read and write in one piece.
#ifndef LIB_CM_LANES_ROW_GLSL
#define LIB_CM_LANES_ROW_GLSL
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require

const uint WORDS = 56u / ROW_PARTS;
const bool HALVES = (56u - WORDS * ROW_PARTS) * 2u == ROW_PARTS;
const uint ROPES = 16u / ROW_PARTS;

struct CmRow {
    uvec2 words[WORDS];
    uint half_word;
    uvec2 rope[ROPES];
    uvec2 scales;
};

// cm_low2, cm_high2: the lower or the upper halves of two words as one.
uint cm_low2(uint a, uint b) { return pack32(u16vec2(unpack16(a).x, unpack16(b).x)); }
uint cm_high2(uint a, uint b) { return pack32(u16vec2(unpack16(a).y, unpack16(b).y)); }

// cm_out2: two results as bf16, rounded to nearest even. Cheaper than bf16_pack2: a NaN stays one only if its sign is positive, as
// that of one made by arithmetic is, or its payload not full.
uint cm_out(float x) {
    const uint u = uint(min(floatBitsToInt(x), 0x7FFF0000));
    return u + 0x7FFFu + ((u >> 16) & 1u);
}

uint cm_out2(vec2 x) { return cm_high2(cm_out(x.x), cm_out(x.y)); }

#ifdef CM_BF16

// cm_weight2: two weights as elements, ties away from zero; a NaN may be lost, its sum keeps it.
uint cm_weight2(float a, float b) { return cm_high2(floatBitsToUint(a) + 0x8000u, floatBitsToUint(b) + 0x8000u); }

// cm_codes: codes 0 and 2, 1 and 3 as cm_element.glsl places them, times a scale, in order.
uvec2 cm_codes(uint even, uint odd, CM_SCALE scale) {
    const vec2 a = vec2(unpackFloat2x16(even)) * scale, b = vec2(unpackFloat2x16(odd)) * scale; // exact in bf16
    return uvec2(cm_high2(floatBitsToUint(a.x), floatBitsToUint(b.x)), cm_high2(floatBitsToUint(a.y), floatBitsToUint(b.y)));
}

uvec2 cm_bf16s(uvec2 w) { return w; }

bool cm_nan(uvec2 w) { return false; } // cm_bf16s keeps it

#else

uint cm_weight2(float a, float b) { return packFloat2x16(f16vec2(a, b)); }

uvec2 cm_codes(uint even, uint odd, CM_SCALE scale) {
    const uint a = packFloat2x16(unpackFloat2x16(even) * scale), b = packFloat2x16(unpackFloat2x16(odd) * scale);
    return uvec2(cm_low2(a, b), cm_high2(a, b));
}

uint cm_bf16(uint w) { return packFloat2x16(f16vec2(clamp(bf16_unpack2(w), vec2(-65504.0), vec2(65504.0)))); }

uvec2 cm_bf16s(uvec2 w) { return uvec2(cm_bf16(w.x), cm_bf16(w.y)); }

// cm_nan: whether one of four bf16 is a NaN, which a clamp may lose.
bool cm_nan(uvec2 w) { return ((((w.x & 0x7FFF7FFFu) + 0x007F007Fu) | ((w.y & 0x7FFF7FFFu) + 0x007F007Fu)) & 0x80008000u) != 0u; }

#endif

// cm_fetch: starts loading the share of the row that cm_locate gave.
void cm_fetch(uvec4 where, out CmRow row) {
    const uint64_t at = packUint2x32(where.xy);
    row.scales = KvRead2(at + where.z).v;
    [[unroll]] for (uint i = 0u; i < WORDS; i++) row.words[i] = KvRead2(at + (i * ROW_PARTS + cm_part) * 8u).v;
    if (HALVES) row.half_word = KvRead1(at + WORDS * ROW_PARTS * 8u + cm_part * 4u).v;
    [[unroll]] for (uint i = 0u; i < ROPES; i++) row.rope[i] = KvRead2(at + KV_ROPE_BYTE + (i * ROW_PARTS + cm_part) * 8u).v;
}

void cm_move(inout CmRow to, CmRow from) {
    [[unroll]] for (uint i = 0u; i < WORDS; i++) to.words[i] = from.words[i];
    [[unroll]] for (uint i = 0u; i < ROPES; i++) to.rope[i] = from.rope[i];
    to.half_word = from.half_word;
    to.scales = from.scales;
}

// cm_word: four codes as elements. keep are the masks of their signs and magnitudes, 0 where the row does not count.
uvec2 cm_word(uint w, uvec2 keep, CM_SCALE scale) {
    const uint even = ((w << 8) & keep.x) | ((w << 7) & keep.y), odd = (w & keep.x) | ((w >> 1) & keep.y);
    return cm_codes(even, odd, scale);
}

// cm_scale_at: the scale of word i*ROW_PARTS + cm_part of the row.
CM_SCALE cm_scale_at(uvec2 scales, uint i) {
    if (ROW_PARTS == 16u) { // blocks 2i and 2i + 1
        return cm_scale(((i < 2u ? scales.x : scales.y) >> (cm_part & 8u)) >> (i % 2u * 16u) & 0xFFu);
    }
    return cm_scale(kv_scale_of(scales, (i * ROW_PARTS + cm_part) / 8u));
}

// cm_keep: writes the share to row `at` of kv_s, zeros where mask is 0, and whether the row counts. The NaN code counts as 480 here, unlike
// in attn_decode: the test for it takes 2 % of the kernel's time. A row made from numbers that are not ones is noticed all the same, by
// its 64 bf16.
void cm_keep(CmRow row, uint mask, uint at) {
    const uint to = at * KV_PITCH;
    const uvec2 keep = uvec2(0x80008000u, 0x3F803F80u) & mask;
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        const CM_SCALE s = cm_scale_at(row.scales, i);
        kv_s[to + i * ROW_PARTS + cm_part] = uvec4(cm_word(row.words[i].x, keep, s), cm_word(row.words[i].y, keep, s));
    }
    if (HALVES) {
        const uint x = WORDS * ROW_PARTS * 2u + cm_part;
        const uvec2 w = cm_word(row.half_word, keep, cm_scale(kv_scale_of(row.scales, ROW_PARTS == 16u ? 6u : x / 16u)));
        kv_s[to + x / 2u][x % 2u * 2u] = w.x;
        kv_s[to + x / 2u][x % 2u * 2u + 1u] = w.y;
    }
#ifndef CM_ONE_BUFFER
    if (cm_part == 0u) bias_s[at / 2u][at % 2u] = mask == 0u ? CM_MASKED : 0.0;
#endif
    [[unroll]] for (uint i = 0u; i < ROPES; i++) {
        const uint x = 112u + i * ROW_PARTS + cm_part;
        const uvec2 w = row.rope[i] & mask, e = cm_bf16s(w);
        kv_s[to + x / 2u][x % 2u * 2u] = cm_nan(w) ? 0x7FFF7FFFu : e.x;
        kv_s[to + x / 2u][x % 2u * 2u + 1u] = e.y;
    }
}

#endif
