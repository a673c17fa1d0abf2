// The rows of cm_lanes_row.glsl for RECORD_FP8 and RECORD_FP4, which may meet in one launch.
//
// A row of RECORD_FP8 is 64 words of 8 codes, four words to a scale; one of RECORD_FP4 32 words of
// 16 codes, each with a scale of its own. Invocations take words in turn. All issue the same loads:
// where a row has half the words, they read these twice, and take the lower codes of the first and
// the upper ones of the second.
//
// Both records take the same way through the same instructions, for kernels have to stay short:
// lib/cm_mla.glsl says why.
#ifndef LIB_CM_RECORD_ROW_GLSL
#define LIB_CM_RECORD_ROW_GLSL

// cm_is_fp4: whether a row is RECORD_FP4, from the flag that came with its place.
bool cm_is_fp4(uint flag) { return WIN_RECORD == COMP_RECORD ? WIN_RECORD == RECORD_FP4 : flag != 0u; }

void cm_fetch_record(uvec3 where, out CmRow row) {
    const uint64_t at = packUint2x32(where.xy);
    row.fp4 = where.z >> 31;
    const bool fp4 = cm_is_fp4(row.fp4);
    CmRead2 from = CmRead2(at + cm_part * 8u), scales = CmRead2(at + (where.z & 0x7FFFFFFFu));
    [[unroll]] for (uint i = 0u; i < WORDS; i++) row.words[i] = from.v[(fp4 ? i % (WORDS / 2u) : i) * ROW_PARTS];
    // Of RECORD_FP8 all 16 bytes. Of RECORD_FP4 the 8 bytes around each that this invocation needs.
    [[unroll]] for (uint i = 0u; i < SCALE_WORDS; i++) {
        const uint four = ROW_PARTS == 16u ? 2u * i + cm_part / 8u : i;
        row.more[i] = scales.v[fp4 ? four : i % 2u];
    }
}

// cm_fp4_word: an E4M3 byte, which is a scale, moved to binary16's place: its number times 2^-8.
uint cm_fp4_word(uint b) { return mix((b + (b & 0x80u)) << 7, 0x7FFFu, (b & 0x7Fu) == 0x7Fu); }

// cm_record_scale: of a byte, as cm_record_codes wants it. E2M1 codes in binary16's place are their
// numbers times 2^-14.
#ifdef CM_BF16

CM_SCALE cm_record_scale(uint b, bool fp4) { return mix(cm_scale(b), unpackFloat2x16(cm_fp4_word(b)).x * 4194304.0, fp4); }

uvec2 cm_record_codes(uint even, uint odd, CM_SCALE scale, bool fp4) { return cm_codes(even, odd, scale); }

#else

CM_SCALE cm_record_scale(uint b, bool fp4) {
    return mix(cm_scale(b), unpackFloat2x16(cm_fp4_word(b) * 0x00010001u) * f16vec2(256.0), bvec2(fp4));
}

// A number that is a scale times 2^14 is beyond binary16: codes become their numbers first.
uint cm_raise(uint w, f16vec2 by) { return packFloat2x16(unpackFloat2x16(w) * by); }

uvec2 cm_record_codes(uint even, uint odd, CM_SCALE scale, bool fp4) {
    const f16vec2 by = f16vec2(fp4 ? 16384.0 : 1.0);
    return cm_codes(cm_raise(even, by), cm_raise(odd, by), scale);
}

#endif

// cm_keep_record: writes the share to row `at` of kv_s. A NaN among E4M3 codes goes where it
// costs least: the row's scores are NaN either way.
void cm_keep_record(CmRow row, uint at) {
    const bool fp4 = cm_is_fp4(row.fp4);
    // Where codes lie in a word: two by two, a sign in bits 15 and 31 and the rest in `kept`.
    const uint next = mix(8u, 4u, fp4), down = mix(1u, 3u, fp4), kept = mix(0x3F803F80u, 0x0E000E00u, fp4);
    uvec2 nan = uvec2(0u); // bits 7 of bytes that are no number
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        const uint unit = i * ROW_PARTS + cm_part;
        const uint word = i % (WORDS / 2u), upper = i / (WORDS / 2u); // of RECORD_FP4
        // Its scale: of RECORD_FP8 byte `first` and up to three behind it, in a word of its own.
        const uint first = i * ROW_PARTS / 4u;
        const uvec2 around = row.more[ROW_PARTS == 4u ? word / 2u : word];
        const uint of_fp4 = mix(around.x, around.y, ROW_PARTS == 4u ? word % 2u != 0u : (cm_part & 4u) != 0u);
        const uint at_byte = mix(first % 4u + cm_part / 4u, cm_part % 4u, fp4);
        const CM_SCALE s = cm_record_scale(mix(row.more[first / 8u][first / 4u % 2u], of_fp4, fp4) >> (at_byte * 8u) & 0xFFu, fp4);

        const uint codes = row.words[i][upper]; // of RECORD_FP4, which come by pairs k, k + 4
        const uvec2 w = mix(row.words[i], uvec2(codes << 8, codes), bvec2(fp4));
        nan |= (w & 0x7F7F7F7Fu) + 0x01010101u;
        const uvec4 raw = uvec4(w << next, w), placed = (raw & 0x80008000u) | ((raw >> down) & kept);
        const uvec2 a = cm_record_codes(placed.x, placed.z, s, fp4), c = cm_record_codes(placed.y, placed.w, s, fp4);
        const uint to = mix(unit, 2u * (word * ROW_PARTS + cm_part) + upper, fp4);
        CM_KEEP_ROW(kv_s, at * KV_PITCH + to, at, mix(uvec4(a, c), uvec4(a.x, c.x, a.y, c.y), bvec4(fp4)))
    }
    if (!fp4 && ((nan.x | nan.y) & 0x80808080u) != 0u) kv_s[at * KV_PITCH + cm_part].x = 0x7FFF7FFFu;
}

#endif
