// cm_keep_row of cm_lanes_row.glsl where the device converts E4M3 codes: the functions without
// conversions, for which cm_word asks cm_floats.
#ifndef LIB_CM_FLOAT8_ROW_GLSL
#define LIB_CM_FLOAT8_ROW_GLSL

// cm_keep_floats: one way for all of a subgroup, in which small scales are rare; lifted numbers
// serve any scale. Of a masked row of RECORDS scales are 0, and codes have to be: NaN is none then.
void cm_keep_floats(CmRow row, uint at) {
    float least = HALVES && !RECORDS ? cm_scale(kv_scale_of(row.scales, 6u)) : 1.0;
    [[unroll]] for (uint i = 0u; i < WORDS; i++) {
        const float s = RECORDS ? cm_fp8_scale((row.more[0] >> (cm_part * (WORDS / 4u) + i / 4u) % 4u * 8u) & 0xFFu)
                                : cm_scale_at(row.scales, i);
        least = min(least, s);
    }
    lifted_ = subgroupBallot(cm_small(least)) != uvec4(0u);
    if (lifted_) {
        if (RECORDS) {
            [[unroll]] for (uint i = 0u; i < WORDS; i++) row.words[i] &= row.mask;
            cm_keep_record(row, at);
        } else {
            cm_keep_v4(row, at);
        }
    } else {
        if (RECORDS) cm_keep_record(row, at);
        else cm_keep_v4(row, at);
    }
}

#endif
