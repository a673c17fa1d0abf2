// Fragments from rows of 16-bit elements or E4M3 codes in shared memory that devices with 32 banks
// of 4 bytes load without conflicts. RADV loads 8 bytes a lane, one from each of 16 rows, and
// coopMatLoad wants rows at multiples of 16 bytes: half of the banks would idle. So the 8-byte
// halves of each 16 bytes of rows 8 to 15 of 16 lie exchanged, and lanes load what they hold
// themselves. ROWS says what that is (opkit.MatrixRows asks the device):
//   0  unknown: nothing is exchanged, and coopMatLoad loads
//   1  lane l holds row l % 16 of 16; of its numbers all, or the l / 16th part
//   2  lane l holds number l of all rows
// With 1 and 2 lane l holds sums of column l % N alone.
// The kernel declares ROWS and CM_K, and includes cm_element.glsl; with CM_CODE_ROWS it also loads
// codes. A fragment's first row is a multiple of 16, or of 8 if matrices have 8 rows.
#ifndef LIB_CM_ROWS_GLSL
#define LIB_CM_ROWS_GLSL

// cm_half: which half of 16 bytes of a row lies first.
uint cm_half(uint row) { return ROWS == 0u ? 0u : row / 8u % 2u; }

// CM_HALF: where a half of 16 bytes of a row lies.
#define CM_HALF(half_, row) ((half_) ^ cm_half(row))

// CM_KEEP_ROW: 16 bytes of a row, to array[at].
#define CM_KEEP_ROW(array, at, row, v) { \
    if (ROWS == 0u) { \
        array[at] = v; \
    } else { \
        const uvec4 v_ = v; \
        const uint first_ = cm_half(row) * 2u, second_ = (cm_half(row) ^ 1u) * 2u; \
        array[at][first_] = v_.x; \
        array[at][first_ + 1u] = v_.y; \
        array[at][second_] = v_.z; \
        array[at][second_ + 1u] = v_.w; \
    } \
}

// CM_PUT: the two elements of a word.
#ifdef CM_BF16
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#define CM_PUT(one, two, word) { \
    const u16vec2 put_ = unpack16(word); \
    one = uintBitsToBFloat16EXT(put_.x); \
    two = uintBitsToBFloat16EXT(put_.y); \
}
#else
#define CM_PUT(one, two, word) { \
    const f16vec2 put_ = unpackFloat2x16(word); \
    one = put_.x; \
    two = put_.y; \
}
#endif
#define CM_PUT2(m, e, word) CM_PUT(m[e], m[(e) + 1u], word)
#define CM_PUT8(m, e, array, at, half_) \
    CM_PUT2(m, e, array[at][(half_) * 2u]) \
    CM_PUT2(m, (e) + 2u, array[at][(half_) * 2u + 1u]) \
    CM_PUT2(m, (e) + 4u, array[at][((half_) ^ 1u) * 2u]) \
    CM_PUT2(m, (e) + 6u, array[at][((half_) ^ 1u) * 2u + 1u])

// CM_LOAD_ROWS: a fragment of CM_K numbers, from the quad of 8 on, of rows row0 on: as operand A
// with layout RowMajor, as B with ColumnMajor. pitch counts quads from row to row.
#define CM_LOAD_ROWS(m, array, row0, quad, pitch, lane, layout_) { \
    if (ROWS == 0u) { \
        coopMatLoad(m, array, (row0) * (pitch) + (quad), pitch, layout_); \
    } else if (ROWS == 1u) { \
        const uint half_ = cm_half((lane) % 16u), first_ = (row0) * (pitch) + (quad) + (lane) % 16u * (pitch); \
        if (m.length() == CM_K) { \
            [[unroll]] for (uint i_ = 0u; i_ < CM_K / 8u; i_++) { CM_PUT8(m, i_ * 8u, array, first_ + i_, half_) } \
        } else { CM_PUT8(m, 0u, array, first_ + (lane) / 16u, half_) } \
    } else { \
        [[unroll]] for (uint e_ = 0u; e_ < m.length(); e_++) { \
            const uint row_ = (row0) + e_, word_ = ((lane) / 2u % 4u) ^ (cm_half(row_) * 2u); \
            CM_ELEMENT even_, odd_; \
            CM_PUT(even_, odd_, array[row_ * (pitch) + (quad) + (lane) / 8u][word_]) \
            m[e_] = (lane) % 2u == 0u ? even_ : odd_; \
        } \
    } \
}

#ifdef CM_CODE_ROWS
#extension GL_EXT_float_e4m3 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require

// CM_PUT4: the four codes of a word.
#define CM_PUT4(m, e, word) { \
    const fe4m3vec4 put_ = uintBitsToFloate4m3EXT(unpack8(word)); \
    m[e] = put_.x; \
    m[(e) + 1u] = put_.y; \
    m[(e) + 2u] = put_.z; \
    m[(e) + 3u] = put_.w; \
}
#define CM_PUT8_CODES(m, e, array, at, half_) \
    CM_PUT4(m, e, array[at][(half_) * 2u]) \
    CM_PUT4(m, (e) + 4u, array[at][(half_) * 2u + 1u])

// CM_LOAD_CODES: CM_LOAD_ROWS of E4M3 codes, 16 numbers a quad. ROWS is 0 or 1.
#define CM_LOAD_CODES(m, array, row0, quad, pitch, lane, layout_) { \
    if (ROWS == 0u) { \
        coopMatLoad(m, array, (row0) * (pitch) + (quad), pitch, layout_); \
    } else { \
        const uint half_ = cm_half((lane) % 16u), first_ = (row0) * (pitch) + (quad) + (lane) % 16u * (pitch); \
        if (m.length() == CM_K) { \
            [[unroll]] for (uint i_ = 0u; i_ < CM_K / 8u; i_++) { CM_PUT8_CODES(m, i_ * 8u, array, first_ + i_ / 2u, (half_ ^ i_ % 2u)) } \
        } else { CM_PUT8_CODES(m, 0u, array, first_, (half_ ^ (lane) / 16u)) } \
    } \
}

#endif
#endif
