// The rows of cm_lanes_row.glsl for RECORD_FP8 and RECORD_FP4, which may meet in one launch.
//
// A row of RECORD_FP8 is 64 words of 8 codes, four words to a scale; one of RECORD_FP4 32 words of
// 16 codes, each with a scale of its own. Invocations take words in turn. All issue the same loads:
// where a row has half the words, they read these twice.
#ifndef LIB_CM_RECORD_ROW_GLSL
#define LIB_CM_RECORD_ROW_GLSL

// cm_is_fp4: whether a row is RECORD_FP4, from the flag that came with its place.
bool cm_is_fp4(uint flag) { return WIN_RECORD == COMP_RECORD ? WIN_RECORD == RECORD_FP4 : flag != 0u; }

// cm_fetch_scales, and scale bytes k of RECORD_FP8 and of RECORD_FP4, of word i of this invocation.
#ifdef CM_ROWS_IN_SUBGROUPS

// Invocations of a row share its scales, for in lanes registers are scarce: each has a word of
// them, or two where they are four.
void cm_fetch_scales(uint64_t at, bool fp4, inout CmRow row) {
    CmRead1 from = CmRead1(at + cm_part % (fp4 ? 8u : 4u) * 4u);
    [[unroll]] for (uint i = 0u; i < SCALE_WORDS; i++) row.more[i] = from.v[fp4 ? i * ROW_PARTS : 0u];
}

uint cm_scale_byte(CmRow row, uint word, uint byte_) {
    uint w = row.more[0];
    if (SCALE_WORDS > 1u) {
        if (word >= ROW_PARTS) w = row.more[SCALE_WORDS - 1u];
    }
    return (subgroupShuffle(w, cm_lane - cm_part + word % ROW_PARTS) >> (8u * byte_)) & 0xFFu;
}

uint cm_fp8_byte(CmRow row, uint i) {
    const uint first = i * ROW_PARTS / 4u;
    return cm_scale_byte(row, first / 4u, first % 4u + cm_part / 4u);
}

uint cm_fp4_byte(CmRow row, uint i) { return cm_scale_byte(row, i * (ROW_PARTS / 4u) + cm_part / 4u, cm_part % 4u); }

#else

// Of RECORD_FP8 all 16 bytes. Of RECORD_FP4 the 8 bytes around each that this invocation needs.
void cm_fetch_scales(uint64_t at, bool fp4, inout CmRow row) {
    CmRead2 from = CmRead2(at);
    [[unroll]] for (uint i = 0u; i < SCALE_WORDS; i++) {
        const uint four = ROW_PARTS == 16u ? 2u * i + cm_part / 8u : i;
        row.more[i] = from.v[fp4 ? four : i % 2u];
    }
}

uint cm_fp8_byte(CmRow row, uint i) {
    return kv_scale_of(row.more[i * ROW_PARTS / 32u], (i * ROW_PARTS + cm_part) / 4u % 8u);
}

uint cm_fp4_byte(CmRow row, uint i) {
    return kv_scale_of(row.more[ROW_PARTS == 4u ? i / 2u : i], ROW_PARTS == 4u ? i % 2u * 4u + cm_part : cm_part % 8u);
}

#endif

void cm_fetch_record(uvec3 where, out CmRow row) {
    const uint64_t at = packUint2x32(where.xy);
    row.fp4 = where.z >> 31;
    const bool fp4 = cm_is_fp4(row.fp4);
    CmRead2 first = CmRead2(at + cm_part * 8u), second = CmRead2(at + cm_part * 8u + (fp4 ? 0u : 256u)); // bytes
    [[unroll]] for (uint i = 0u; i < WORDS / 2u; i++) row.words[i] = first.v[i * ROW_PARTS];
    [[unroll]] for (uint i = 0u; i < WORDS / 2u; i++) row.words[WORDS / 2u + i] = second.v[i * ROW_PARTS];
    cm_fetch_scales(at + (where.z & 0x7FFFFFFFu), fp4, row);
}

#ifdef CM_BF16

// cm_fp4_scale: an E4M3 byte times 2^14, as cm_fp4x8 wants it.
CM_SCALE cm_fp4_scale(uint b) { return e4m3_decode(b) * 16384.0; }

uint cm_fp4_place(uint w) { return w; }

#else

CM_SCALE cm_fp4_scale(uint b) {
    const f16vec2 s = unpackFloat2x16((b << 7) | (b << 23)) * f16vec2(256.0);
    return b == 0x7Fu ? unpackFloat2x16(0x7FFF7FFFu) : s;
}

// cm_fp4_place: of two codes, placed, their numbers.
uint cm_fp4_place(uint w) { return packFloat2x16(unpackFloat2x16(w) * f16vec2(16384.0)); }

#endif

// cm_fp4x8: eight E2M1 codes of a word, times a scale, as elements. Moved to binary16's place a
// code is its number times 2^-14, for both formats have subnormals. Codes come by pairs k, k + 4.
uvec4 cm_fp4x8(uint w, CM_SCALE scale) {
    const uint a = ((w << 12) & 0x80008000u) | ((w << 9) & 0x0E000E00u), b = ((w << 8) & 0x80008000u) | ((w << 5) & 0x0E000E00u);
    const uint c = ((w << 4) & 0x80008000u) | ((w << 1) & 0x0E000E00u), d = (w & 0x80008000u) | ((w >> 3) & 0x0E000E00u);
    const uvec2 ab = cm_codes(cm_fp4_place(a), cm_fp4_place(b), scale), cd = cm_codes(cm_fp4_place(c), cm_fp4_place(d), scale);
    return uvec4(ab.x, cd.x, ab.y, cd.y);
}

// cm_keep_record: writes the share to row `at` of kv_s. A NaN among E4M3 codes goes where it
// costs least: the row's scores are NaN either way.
void cm_keep_record(CmRow row, uint at) {
    const uint to = at * KV_PITCH;
    if (cm_is_fp4(row.fp4)) {
        [[unroll]] for (uint i = 0u; i < WORDS / 2u; i++) {
            const CM_SCALE s = cm_fp4_scale(cm_fp4_byte(row, i));
            const uint unit = to + 2u * (i * ROW_PARTS + cm_part);
            CM_KEEP_ROW(kv_s, unit, at, cm_fp4x8(row.words[i].x, s))
            CM_KEEP_ROW(kv_s, unit + 1u, at, cm_fp4x8(row.words[i].y, s))
        }
        return;
    }
    code_top_ = f16vec2(0.0);
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        const CM_SCALE s = cm_scale(cm_fp8_byte(row, i));
        CM_KEEP_ROW(kv_s, to + i * ROW_PARTS + cm_part, at, uvec4(cm_word(row.words[i].x, s), cm_word(row.words[i].y, s)))
    }
    if (max(code_top_.x, code_top_.y) > float16_t(1.8)) kv_s[to + cm_part].x = 0x7FFF7FFFu;
}

#endif
