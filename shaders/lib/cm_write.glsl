// How the output of one (token, heads, split) leaves matrices and shared memory; goes with
// lib/cm_mla_tiles.glsl and lib/cm_lanes.glsl.
#ifndef LIB_CM_WRITE_GLSL
#define LIB_CM_WRITE_GLSL

// CM_POSITION, CM_WORD_AT: the order of words of 8 numbers in kv_s; lib/cm_locate.glsl has another.
#ifndef CM_POSITION
#define CM_POSITION(word) (word)
#define CM_WORD_AT(place) (place)
#endif

// cm_output: 8 neighbouring numbers of the output as bf16. The kernel defines it.
uvec4 cm_output(vec4 x, vec4 y);

// cm_write_parts: the partial output of a workgroup whose heads all exist, straight from acc.
void cm_write_parts(uint t, uint head0, uint split) {
    [[unroll]] for (uint i = 0u; i < HEAD_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < OUT_TILES; j++) {
            const uint row = ((t * pc.splits + split) * pc.heads + head0 + i * CM_M) * 128u;
            const uint word = CM_WORD_AT((cm_sub * OUT_TILES + j) * CM_N / 8u);
            coopMatStore(acc_f[i][j], part_out.rows, row + word * 2u, 128u, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
}

// CM_OUT_PLACE: where cm_write finds word c of head h in kv_s, unless the kernel says otherwise.
#ifndef CM_OUT_PLACE
#define CM_OUT_PLACE(h, c) (h % CM_M * OUT_PITCH + CM_POSITION(c) * 2u)
#endif

// CM_OUT_READ: declares the numbers of word c of head h, a and b, likewise.
#ifndef CM_OUT_READ
#define CM_OUT_READ(h, c) \
    const uint at = CM_OUT_PLACE(h, c); \
    const vec4 a = uintBitsToFloat(kv_s[at]), b = uintBitsToFloat(kv_s[at + 1u]);
#endif

// cm_write: word c, of 8 numbers, of head h of the workgroup, whose matrix lies in kv_s from row 0
// on: finished if there is one split, else partial.
void cm_write(uint t, uint head0, uint split, uint h, uint c) {
    CM_OUT_READ(h, c)
    if (pc.splits == 1u) {
        const float f = factor_s[h / 4u][h % 4u];
        dst.rows[(t * pc.heads + head0 + h) * 64u + c] = cm_output(a * f, b * f);
    } else {
        const uint row = ((t * pc.splits + split) * pc.heads + head0 + h) * 128u;
        part_out.rows[row + c * 2u] = a;
        part_out.rows[row + c * 2u + 1u] = b;
    }
}

#endif
