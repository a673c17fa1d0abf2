// The second half of kv_compress.comp with MODE other than POOLED: an entry by way of its latent.
//
//   x = bf16(v),  latent = bf16(x * (sum x^2 / DIM + eps)^-0.5 * norm),
//   y = latent with its last 64 numbers turned and rounded to bf16,  slot = quantise(y)
//
// The latent goes to row i of `latent` if there is one. Every function is for all invocations;
// those that are not `mine` have nothing to store.
#ifndef LIB_KV_LATENT_GLSL
#define LIB_KV_LATENT_GLSL

// store_pairs: two lanes put 16 bits of codes each into a word. Codes go through amax_of.
void store_pairs(bool mine, uint lane, uint codes, uint page, uint at) {
    barrier(); // amax_of has been read
    if (mine) amax_of[lane / 4u][lane % 4u] = codes;
    barrier();
    if (mine && lane % 2u == 0u) {
        const uvec4 c = amax_of[lane / 4u];
        pool_store_word(page, at + lane * 2u, (lane & 2u) == 0u ? c.x | (c.y << 16) : c.z | (c.w << 16));
    }
}

// scales_word: scale bytes 4k .. 4k+3, of those in codes_of.
uint scales_word(uint k) {
    return codes_of[4u * k] | (codes_of[4u * k + 1u] << 8) | (codes_of[4u * k + 2u] << 16) | (codes_of[4u * k + 3u] << 24);
}

// store_latent_row: four numbers a lane to a slot of a K cache.
void store_latent_row(bool mine, uint lane, uvec2 w, uint page, uint t) {
    const uint sharers = record_block(RECORD) / 4u, block = lane / sharers; // lanes of a block
    const uint amax = amax_of_lanes(block * sharers, sharers);
    const uint row = record_row_byte(RECORD, t);
    const bool rotated = RECORD == RECORD_V4 && block == KV_BLOCKS;
    const uint sb = rotated ? 0u : record_scale(RECORD, uintBitsToFloat(amax << 16));
    if (mine && lane % sharers == 0u) codes_of[block] = sb;
    if (record_nibbles(RECORD)) {
        store_pairs(mine, lane, fp4_codes4(w, e4m3_decode(sb)), page, row);
    } else {
        if (mine && rotated) pool_store_word2(page, row + KV_ROPE_BYTE + (lane % 16u) * 8u, w);
        else if (mine) pool_store_word(page, row + lane * 4u, quantise4_any(w, ue8m0_inverse(sb), amax < 0x7F80u));
        barrier();
    }
    if (mine && lane < record_scale_bytes(RECORD) / 4u)
        pool_store_word(page, record_scale_byte(RECORD, PAGE, t) + lane * 4u, scales_word(lane));
}

// store_latent_key: four numbers a lane to a slot of a cache of indexer keys.
void store_latent_key(bool mine, uint lane, uvec2 w, uint page, uint t) {
    if (FORMAT == INDEX_FP8) {
        const uint amax = amax_of_lanes(0u, LANES);
        const uint sb = ue8m0_encode(uintBitsToFloat(amax << 16), UE8M0_EPS_KV, UE8M0_INV_E4M3);
        if (mine) pool_store_word(page, index_row_byte(INDEX_FP8, t) + lane * 4u, quantise4_any(w, ue8m0_inverse(sb), amax < 0x7F80u));
        if (mine && lane == 0u) pool_store_word(page, index_scale_byte(INDEX_FP8, PAGE, t), floatBitsToUint(ue8m0_scale(sb)));
        return;
    }
    const uint amax = amax_of_lanes(lane / 8u * 8u, 8u);
    const uint sb = ue8m0_encode(uintBitsToFloat(amax << 16), UE8M0_EPS_MXFP4, UE8M0_INV_E2M1);
    if (mine && lane % 8u == 0u) codes_of[lane / 8u] = sb;
    store_pairs(mine, lane, quantise4_e2m1(w, ue8m0_inverse(sb)), page, index_row_byte(INDEX_MXFP4, t));
    if (mine && lane == 1u) pool_store_word(page, index_scale_byte(INDEX_MXFP4, PAGE, t), scales_word(0u));
}

// finish_latent: the entry of token i, from a lane's four channels of v.
void finish_latent(bool mine, uint lane, vec4 v, uvec4 gain, vec4 turn, uint i, uint slot) {
    const vec4 x = vec4(bf16_unpack2(bf16_pack2(v.x, v.y)), bf16_unpack2(bf16_pack2(v.z, v.w)));
    precise float q = (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
    share_squares(mine, lane, q, 0u);
    precise float mean = mean_square() + pc.eps;
    const vec4 weight = pc.norm_bf16 != 0u ? vec4(bf16_unpack2(gain.x), bf16_unpack2(gain.y)) : uintBitsToFloat(gain);
    precise vec4 n = (x * real_rsqrt(mean)) * weight;
    uvec2 w = uvec2(bf16_pack2(n.x, n.y), bf16_pack2(n.z, n.w));
    if (mine && pc.has_latent != 0u) latent_put(i * LANES + lane, w);
    if (lane >= LANES - 16u) {
        const vec2 a = rope_rotate(bf16_unpack2(w.x), turn.xy), b = rope_rotate(bf16_unpack2(w.y), turn.zw);
        w = uvec2(bf16_pack2(a.x, a.y), bf16_pack2(b.x, b.y));
    }
    if (mine) amax_of[lane / 4u][lane % 4u] = quantise_amax(w);
    barrier();
    const uint page = slot / PAGE, t = slot % PAGE;
    if (FORMAT == 0u) store_latent_row(mine, lane, w, page, t);
    else store_latent_key(mine, lane, w, page, t);
}

#endif
