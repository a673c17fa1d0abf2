// How the sums of whole tiles go to y: proj_linear_whole.comp, proj_linear_deep.comp. Include
// linear_tiles.glsl first, with LINEAR_HALVES.
#ifndef LIB_LINEAR_WHOLE_GLSL
#define LIB_LINEAR_WHOLE_GLSL

// quick_bf16: four numbers of bf16, rounded as bf16_pack2 does it, which knows NaN and is slower
// for it.
uint quick_round(uint u) { return u + 0x7FFFu + ((u >> 16) & 1u); }
uvec2 quick_bf16(vec4 v) {
    const float all = (v.x + v.y) + (v.z + v.w); // NaN where one of them is
    const uvec4 u = floatBitsToUint(v);
    uvec2 r = uvec2(linear_highs(quick_round(u.x), quick_round(u.y)), linear_highs(quick_round(u.z), quick_round(u.w)));
    if ((floatBitsToUint(all) & 0x7FFFFFFFu) > 0x7F800000u) r = uvec2(bf16_pack2(v.x, v.y), bf16_pack2(v.z, v.w));
    return r;
}

// finish_whole: finish of lib/linear_tiles.glsl for tiles of which all rows are there.
void finish_whole(uint split, uint sub, uint lane, uint m0, uint n0) {
    const uint mine = sub * CM_M * OUT_PITCH;
    const uint64_t y_addr = pc.y_addr + uint64_t(split) * pc.tokens * pc.y_stride * 4u;
    const uint ROWS = SUBGROUP / (WN / 4u); // of a tile that a subgroup stores at a time
    const uint m_lane = lane / (WN / 4u), q = lane % (WN / 4u), row = row0_ + n0 + q * 4u;
    const uint skip = first_ - t0_;
    const uint bytes = pc.y_f32 != 0u ? 4u : 2u;
    uint64_t at = y_addr + uint64_t((t0_ + m0 + m_lane) * pc.y_stride + pc.y_column + row) * bytes;
    const uint64_t step = uint64_t(ROWS * pc.y_stride * bytes);
    barrier();
    [[unroll]] for (uint i = 0u; i < M_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < N_TILES; j++) {
            coopMatStore(acc[i][j], tile_s, mine + j * CM_N / 4u, OUT_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        [[unroll]] for (uint k = 0u; k < CM_M / ROWS; k++) {
            const uint m = m_lane + k * ROWS;
            vec4 v = uintBitsToFloat(tile_s[mine + m * OUT_PITCH + q]) * WEIGHT_UNSCALE;
            if (ROW_SCALES) v *= vec4(row_scale.v[row], row_scale.v[row + 1u], row_scale.v[row + 2u], row_scale.v[row + 3u]);
            if (WEIGHT_REF) v *= uintBitsToFloat(ref());
            if (FRACTIONS) v *= unit_of_sums_;
            if (m0 + i * CM_M + m >= skip) {
                if (pc.y_f32 != 0u) {
                    KvWrite2(at).v = floatBitsToUint(v.xy);
                    KvWrite2(at + 8u).v = floatBitsToUint(v.zw);
                } else KvWrite2(at).v = quick_bf16(v);
            }
            at += step;
        }
        barrier();
    }
}

#endif
