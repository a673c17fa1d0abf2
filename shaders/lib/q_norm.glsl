// Queries divided by their root mean square, the last 64 of 512 numbers turned. A word is two
// neighbouring bf16. proj_q_insert.comp does it in a launch of its own, attn_decode_cm.comp as it
// loads queries. The bits are the same: both add in the order of lib/rms.glsl, over 32 invocations
// with units u and u + 32 of a head.
// Goes with lib/rms.glsl and lib/rope.glsl.
#ifndef LIB_Q_NORM_GLSL
#define LIB_Q_NORM_GLSL

// q_turned, q_scaled: of a row whose sum of squares is below RMS_MOST, so that it has neither NaNs
// nor infinities and gets none.
uint q_turned(uint word, float r, vec2 cos_sin) {
    precise vec2 y = bf16_unpack2(word) * r;
    const vec2 z = rope_rotate(y, cos_sin);
    return rms_pack2(z.x, z.y);
}

uint q_scaled(uint word, float r) {
    precise vec2 y = bf16_unpack2(word) * r;
    return rms_pack2(y.x, y.y);
}

// q_unusual: a unit of any other row, turned if it has cosines.
uvec4 q_unusual(uvec4 w, float r, vec4 near, vec4 far, bool turns) {
    [[dont_unroll]] for (uint k = 0u; k < 4u; k++) {
        precise vec2 y = bf16_unpack2(w.x) * r;
        const vec2 z = turns ? rope_rotate(y, near.xy) : y;
        w = uvec4(w.yzw, bf16_pack2(z.x, z.y));
        near = vec4(near.zw, far.xy);
        far = far.zwxy;
    }
    return w;
}

#endif
