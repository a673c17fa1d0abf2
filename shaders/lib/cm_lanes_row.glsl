// One invocation's share of a row of a paged cache on its way to shared memory; goes with
// attn_decode_lanes and attn_decode_cm. ROW_PARTS is 4, 8 or 16.
//
// A row of RECORD_V4 is 56 words of 8 E4M3 bytes and 16 words of 4 bf16. Its invocations take words
// of codes in turn, then half a word each where that is what is left, then words of bf16. Every one
// issues the same loads, and eight neighbours read and write in one piece.
#ifndef LIB_CM_LANES_ROW_GLSL
#define LIB_CM_LANES_ROW_GLSL
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require

const uint WORDS = (RECORDS ? 64u : 56u) / ROW_PARTS;
const bool HALVES = (56u - WORDS * ROW_PARTS) * 2u == ROW_PARTS;
const uint ROPES = 16u / ROW_PARTS;
const uint SCALE_WORDS = WORDS > 8u ? 2u : 1u; // of other records

struct CmRow {
    uvec2 words[WORDS];
    uint half_word;
    uvec2 rope[ROPES];
    uvec2 scales;
    uint more[SCALE_WORDS];  // RECORDS only, as the next
    uint fp4;                // 1 of RECORD_FP4, else 0
    uint mask;               // ~0 of a row that counts, else 0
};

// cm_low2, cm_high2: the lower or the upper halves of two words as one.
uint cm_low2(uint a, uint b) { return pack32(u16vec2(unpack16(a).x, unpack16(b).x)); }
uint cm_high2(uint a, uint b) { return pack32(u16vec2(unpack16(a).y, unpack16(b).y)); }

// cm_out2: two results as bf16, rounded to nearest even. It is cheaper than bf16_pack2: a NaN stays
// one only if its sign is positive, as that of one made by arithmetic is, or its payload is not
// full.
uint cm_out(float x) {
    const uint u = uint(min(floatBitsToInt(x), 0x7FFF0000));
    return u + 0x7FFFu + ((u >> 16) & 1u);
}

uint cm_out2(vec2 x) { return cm_high2(cm_out(x.x), cm_out(x.y)); }

#ifdef CM_BF16

// cm_codes: codes 0 and 2, 1 and 3 as cm_element.glsl places them, times a scale, in order.
uvec2 cm_codes(uint even, uint odd, CM_SCALE scale) {
    const vec2 a = vec2(unpackFloat2x16(even)) * scale, b = vec2(unpackFloat2x16(odd)) * scale; // exact in bf16
    return uvec2(cm_high2(floatBitsToUint(a.x), floatBitsToUint(b.x)), cm_high2(floatBitsToUint(a.y), floatBitsToUint(b.y)));
}

uvec2 cm_bf16s(uvec2 w) { return w; }

bool cm_nan(uvec2 w) { return false; } // cm_bf16s keeps it

#else

uvec2 cm_codes(uint even, uint odd, CM_SCALE scale) {
    const uint a = packFloat2x16(unpackFloat2x16(even) * scale), b = packFloat2x16(unpackFloat2x16(odd) * scale);
    return uvec2(cm_low2(a, b), cm_high2(a, b));
}

uint cm_bf16(uint w) { return packFloat2x16(f16vec2(clamp(bf16_unpack2(w), vec2(-65504.0), vec2(65504.0)))); }

uvec2 cm_bf16s(uvec2 w) { return uvec2(cm_bf16(w.x), cm_bf16(w.y)); }

// cm_nan: whether one of four bf16 is a NaN, which a clamp may lose.
bool cm_nan(uvec2 w) { return ((((w.x & 0x7FFF7FFFu) + 0x007F007Fu) | ((w.y & 0x7FFF7FFFu) + 0x007F007Fu)) & 0x80008000u) != 0u; }

#endif

// volatile: otherwise compilers move loads to where their results are used, and wait there.
layout(buffer_reference, std430, buffer_reference_align = 4) volatile readonly buffer CmRead1 { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) volatile readonly buffer CmRead2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) volatile readonly buffer CmRead4 { uvec4 v[]; };

// Rows of kv_s may lie as lib/cm_rows.glsl says, which the kernel then includes.
#ifndef CM_KEEP_ROW
#define CM_KEEP_ROW(array, at, row, v) array[at] = v;
#define CM_HALF(half_, row) half_
#endif

f16vec2 code_top_; // the largest code of a share, as cm_word places it: at most 1.75, or 1.875 if one is NaN

#ifdef FLOAT8
#extension GL_EXT_float_e4m3 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require

// cm_floats: cm_word by the device's conversions, but that a NaN stays one. Numbers times 2^-8 are
// placed codes, so that the products are the same with every scale. One factor of both is none: a
// scale of 2^-127 is no ordinary f32 number.
uvec2 cm_floats(uint w, CM_SCALE scale) {
    precise vec4 placed = vec4(uintBitsToFloate4m3EXT(unpack8(w))) * 0.00390625;
    precise vec4 x = placed * scale;
    return uvec2(cm_high2(floatBitsToUint(x.x), floatBitsToUint(x.y)), cm_high2(floatBitsToUint(x.z), floatBitsToUint(x.w)));
}
#endif

// cm_word: four codes as elements, NaN as 480.
uvec2 cm_word(uint w, CM_SCALE scale) {
#ifdef FLOAT8
    return cm_floats(w, scale);
#else
    const uint even = ((w << 8) & 0x80008000u) | ((w << 7) & 0x3F803F80u), odd = (w & 0x80008000u) | ((w >> 1) & 0x3F803F80u);
    code_top_ = max(code_top_, max(abs(unpackFloat2x16(even)), abs(unpackFloat2x16(odd))));
    return cm_codes(even, odd, scale);
#endif
}

#include "cm_record_row.glsl"

// cm_mask_row: unless mask has all bits, zeros; of other records no scales, with which all numbers
// are finite, for the weights of a masked row are zeros.
void cm_mask_row(inout CmRow row, uint mask) {
    if (RECORDS) {
        row.mask = mask;
        [[unroll]] for (uint i = 0u; i < SCALE_WORDS; i++) row.more[i] &= mask;
#ifdef FLOAT8 // NaN times 0 is none
        [[unroll]] for (uint i = 0u; i < WORDS; i++) row.words[i] &= mask;
#endif
        return;
    }
    [[unroll]] for (uint i = 0u; i < WORDS; i++) row.words[i] &= mask;
    [[unroll]] for (uint i = 0u; i < ROPES; i++) row.rope[i] &= mask;
    row.half_word &= mask;
}

// cm_fetch_row: starts loading the share of the row at the address in where.xy, whose scales lie
// where.z behind it.
void cm_fetch_row(uvec3 where, out CmRow row) {
    if (RECORDS) {
        cm_fetch_record(where, row);
        return;
    }
    const uint64_t at = packUint2x32(where.xy);
    CmRead2 from = CmRead2(at + cm_part * 8u);
    [[unroll]] for (uint i = 0u; i < WORDS; i++) row.words[i] = from.v[i * ROW_PARTS];
    [[unroll]] for (uint i = 0u; i < ROPES; i++) row.rope[i] = from.v[KV_ROPE_BYTE / 8u + i * ROW_PARTS];
    if (HALVES) row.half_word = CmRead1(at + cm_part * 4u).v[WORDS * ROW_PARTS * 2u];
    row.scales = CmRead2(at + where.z).v[0];
}

// cm_scale_at: the scale of word i*ROW_PARTS + cm_part of the row.
CM_SCALE cm_scale_at(uvec2 scales, uint i) {
    if (ROW_PARTS == 16u) { // blocks 2i and 2i + 1
        return cm_scale(((i < 2u ? scales.x : scales.y) >> (cm_part & 8u)) >> (i % 2u * 16u) & 0xFFu);
    }
    return cm_scale(kv_scale_of(scales, (i * ROW_PARTS + cm_part) / 8u));
}

// cm_keep_v4: writes the share to row `at` of kv_s. A NaN among its codes goes into its bf16
// instead, where it costs least: the row's scores are NaN either way.
void cm_keep_v4(CmRow row, uint at) {
    const uint to = at * KV_PITCH, pair = cm_part / 2u, half_ = CM_HALF(cm_part % 2u, at) * 2u; // of a word of kv_s
    code_top_ = f16vec2(0.0);
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        const CM_SCALE s = cm_scale_at(row.scales, i);
        CM_KEEP_ROW(kv_s, to + i * ROW_PARTS + cm_part, at, uvec4(cm_word(row.words[i].x, s), cm_word(row.words[i].y, s)))
    }
    if (HALVES) {
        const uint block = ROW_PARTS == 16u ? 6u : (WORDS * ROW_PARTS * 2u + cm_part) / 16u;
        const uvec2 w = cm_word(row.half_word, cm_scale(kv_scale_of(row.scales, block)));
        kv_s[to + WORDS * ROW_PARTS + pair][half_] = w.x;
        kv_s[to + WORDS * ROW_PARTS + pair][half_ + 1u] = w.y;
    }
    const bool nan = max(code_top_.x, code_top_.y) > float16_t(1.8);
    [[unroll]] for (uint i = 0u; i < ROPES; i++) {
        const uint x = to + 56u + i * ROW_PARTS / 2u + pair;
        const uvec2 w = row.rope[i], e = cm_bf16s(w);
        kv_s[x][half_] = nan || cm_nan(w) ? 0x7FFF7FFFu : e.x;
        kv_s[x][half_ + 1u] = e.y;
    }
}

// cm_keep_row: writes the share of whatever record to row `at` of kv_s. A function more would be a
// ninth on the way from main to cm_high2, which NVIDIA's compiler does not write out: see
// docs/design/decode.md.
#define cm_keep_row(row, at) { if (RECORDS) cm_keep_record(row, at); else cm_keep_v4(row, at); }

#endif
