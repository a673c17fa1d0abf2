// The rows of cm_lanes_row.glsl for records other than RECORD_V4, two of which may meet in one
// launch: with E4M3 codes or nibbles, a scale for two or four words of 8 numbers.
//
// An invocation brings in WORDS neighbouring words of 8 numbers, and what it needs of their scales
// is a word, or two where it has 16. All issue the same loads: of nibbles the later half of
// these read the share again.
#ifndef LIB_CM_RECORD_ROW_GLSL
#define LIB_CM_RECORD_ROW_GLSL

// cm_is_fp4: whether a row's codes are nibbles, from the flag that came with its place.
bool cm_is_fp4(uint flag) { return WIN_NIBBLES == COMP_NIBBLES ? WIN_NIBBLES : flag != 0u; }

// cm_fetch_record: starts loading the share of the row at the address in where.xy, whose scales lie
// where.z behind it.
void cm_fetch_record(uvec3 where, out CmRow row) {
    const uint64_t at = packUint2x32(where.xy);
    row.fp4 = where.z >> 31;
    row.mask = ~0u;
    const bool fp4 = cm_is_fp4(row.fp4);
    CmRead4 first = CmRead4(at + cm_part * (fp4 ? WORDS * 4u : WORDS * 8u));
    const uint behind = fp4 ? 0u : WORDS / 4u;
    [[unroll]] for (uint i = 0u; i < WORDS / 4u; i++) {
        const uvec4 w = first.v[i];
        row.words[2u * i] = w.xy;
        row.words[2u * i + 1u] = w.zw;
    }
    [[unroll]] for (uint i = 0u; i < WORDS / 4u; i++) {
        const uvec4 w = first.v[behind + i];
        row.words[WORDS / 2u + 2u * i] = w.xy;
        row.words[WORDS / 2u + 2u * i + 1u] = w.zw;
    }
    CmRead1 scales = CmRead1(at + (where.z & 0x7FFFFFFFu) + (cm_part * (fp4 ? WORDS / 2u : WORDS / 4u) & ~3u));
    [[unroll]] for (uint i = 0u; i < SCALE_WORDS; i++) row.more[i] = scales.v[fp4 ? i : 0u];
}

// cm_fp4_scales: the E4M3 bytes of the lower half of w as binary16.
f16vec2 cm_fp4_scales(uint w) {
    return unpackFloat2x16(cm_e4m3_place(((w << 8) & 0xFF00u) | ((w << 16) & 0xFF000000u))) * f16vec2(256.0);
}

#ifdef CM_BF16

// cm_fp8_scale: cm_scale of a row that lies in kv_s times 2^-14.
CM_SCALE cm_fp8_scale(uint b) { return uintBitsToFloat((clamp(b, 6u, 246u) - 6u) << 23); }

// cm_fp4_codes: as cm_codes, of E2M1 codes in binary16's place. The products are exact.
uvec2 cm_fp4_codes(uint even, uint odd, f16vec2 scale) {
    const vec2 a = vec2(unpackFloat2x16(even) * scale), b = vec2(unpackFloat2x16(odd) * scale);
    return uvec2(cm_high2(floatBitsToUint(a.x), floatBitsToUint(b.x)), cm_high2(floatBitsToUint(a.y), floatBitsToUint(b.y)));
}

#else

CM_SCALE cm_fp8_scale(uint b) { return cm_scale(b); }

uvec2 cm_fp4_codes(uint even, uint odd, f16vec2 scale) {
    const f16vec2 up = f16vec2(16384.0);
    const uint a = packFloat2x16(unpackFloat2x16(even) * up * scale), b = packFloat2x16(unpackFloat2x16(odd) * up * scale);
    return uvec2(cm_low2(a, b), cm_high2(a, b));
}

#endif

// cm_fp4x8: eight E2M1 codes of a word, times a scale, as elements. Moved to binary16's place a
// code is its number times 2^-14, for both formats have subnormals. Codes come by pairs k, k + 4.
uvec4 cm_fp4x8(uint w, f16vec2 scale) {
    const uint a = ((w << 12) & 0x80008000u) | ((w << 9) & 0x0E000E00u), b = ((w << 8) & 0x80008000u) | ((w << 5) & 0x0E000E00u);
    const uint c = ((w << 4) & 0x80008000u) | ((w << 1) & 0x0E000E00u), d = (w & 0x80008000u) | ((w >> 3) & 0x0E000E00u);
    const uvec2 ab = cm_fp4_codes(a, b, scale), cd = cm_fp4_codes(c, d, scale);
    return uvec4(ab.x, cd.x, ab.y, cd.y);
}

// CM_KEEP_FP4: 16 codes to kv_s[unit] and the invocation's next.
#define CM_KEEP_FP4(w, unit, at, scale) \
    CM_KEEP_ROW(kv_s, unit, at, cm_fp4x8(w.x, scale)) \
    CM_KEEP_ROW(kv_s, (unit) + CM_NEXT, at, cm_fp4x8(w.y, scale))

// cm_keep_record: writes the share to row `at` of kv_s, where CM_POSITION says. A NaN among E4M3
// codes goes where it costs least: the row's scores are NaN either way.
void cm_keep_record(CmRow row, uint at) {
    const uint to = at * KV_PITCH + CM_TURN * cm_part;
    if (cm_is_fp4(row.fp4)) {
        [[unroll]] for (uint i = 0u; i < WORDS / 4u; i++) {
            const f16vec2 s = cm_fp4_scales(row.more[i / 2u] >> (cm_part * (WORDS / 4u) + i) % 2u * 16u);
            CM_KEEP_FP4(row.words[2u * i], to + i * 4u * ROW_PARTS, at, s.xx)
            CM_KEEP_FP4(row.words[2u * i + 1u], to + i * 4u * ROW_PARTS + 2u * ROW_PARTS, at, s.yy)
        }
        return;
    }
    code_top_ = f16vec2(0.0);
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        const CM_SCALE s = cm_fp8_scale((row.more[0] >> (cm_part * (WORDS / 4u) + i / 4u) % 4u * 8u) & 0xFFu);
        const uint unit = to + i / CM_TURN * CM_TURN * ROW_PARTS + i % CM_TURN;
        CM_KEEP_ROW(kv_s, unit, at, uvec4(cm_word(row.words[i].x, s), cm_word(row.words[i].y, s)))
    }
    if (row.mask != 0u && max(code_top_.x, code_top_.y) > float16_t(1.8)) kv_s[to].x = 0x7FFF7FFFu;
}

#endif
