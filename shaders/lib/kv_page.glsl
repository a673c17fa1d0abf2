// The K page of a V4 cache, and how a kernel reaches a pool of such pages.
//
// A slot holds 512 numbers: 448 "nope" values as E4M3 bytes in 7 blocks of 64, each with a
// UE8M0 scale, and 64 rotated values as bf16. Slot t of a page of P slots:
//
//   bytes t*576 + 0   .. 447   nope codes
//         t*576 + 448 .. 575   64 bf16
//         P*576 + t*8 + 0 .. 6 scales of the blocks; byte 7 is 0 and never a scale
//
// Page g begins at byte g*stride of the pool, stride >= P*584 and a multiple of 8, and
// so 4- and 8-byte accesses are aligned, 16-byte ones need not be.
//
// KV_POOL(name, binding)    declares a pool that is only read:
//                           uint  name_word(page, byte)   the 4-byte word at that byte of the page
//                           uvec2 name_word2(page, byte)  the 8-byte word
// KV_POOL_RW(name, binding) declares a pool that is only written: void name_store_word(page, byte,
//                           uint), name_store_word2(page, byte, uvec2)
//
// By address or by descriptor: lib/addressed.glsl. Declare the push block with the members
//
//   ADDRESS name_addr;  uint name_stride;   // bytes per page
//
// and only then write KV_POOL. Page and offset must have been checked by the caller.
#ifndef LIB_KV_PAGE_GLSL
#define LIB_KV_PAGE_GLSL

#include "addressed.glsl"

const uint KV_D = 512u;          // numbers in a slot
const uint KV_NOPE = 448u;       // of these E4M3
const uint KV_ROPE = 64u;        // of these bf16
const uint KV_BLOCK = 64u;       // E4M3 values that share a scale
const uint KV_BLOCKS = 7u;       // scales of a slot
const uint KV_ROW_BYTES = 576u;  // data bytes of a slot
const uint KV_ROPE_BYTE = 448u;  // where its bf16 part begins
const uint KV_SCALE_BYTES = 8u;  // scale bytes of a slot with the pad byte

// kv_row_byte, kv_scale_byte: where slot t of a page of page_slots slots keeps its data
// and its scales.
uint kv_row_byte(uint t) { return t * KV_ROW_BYTES; }
uint kv_scale_byte(uint page_slots, uint t) { return page_slots * KV_ROW_BYTES + t * KV_SCALE_BYTES; }

// kv_scale_of: byte k (0..6) of a slot's 8 scale bytes.
uint kv_scale_of(uvec2 scales, uint k) { return ((k < 4u ? scales.x : scales.y) >> ((k & 3u) * 8u)) & 0xFFu; }

#ifdef ADDRESSED

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer KvRead1 { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer KvRead2 { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer KvWrite1 { uint v; };
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer KvWrite2 { uvec2 v; };

#define KV_POOL_AT(name) \
    uint64_t name##_at(uint page, uint byte) { return pc.name##_addr + uint64_t(page) * pc.name##_stride + byte; }

#define KV_POOL(name, binding_number) KV_POOL_AT(name) \
    uint name##_word(uint page, uint byte) { return KvRead1(name##_at(page, byte)).v; } \
    uvec2 name##_word2(uint page, uint byte) { return KvRead2(name##_at(page, byte)).v; }

#define KV_POOL_RW(name, binding_number) KV_POOL_AT(name) \
    void name##_store_word(uint page, uint byte, uint w) { KvWrite1(name##_at(page, byte)).v = w; } \
    void name##_store_word2(uint page, uint byte, uvec2 w) { KvWrite2(name##_at(page, byte)).v = w; }

#else

// One array type per pool, so that no two views of the same bytes exist in a kernel.
#define KV_POOL(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) readonly buffer name##_block { uvec2 v[]; } name##_buf; \
    uint name##_word(uint page, uint byte) { \
        uint i = (page * pc.name##_stride + byte) >> 2; \
        return name##_buf.v[i >> 1][i & 1u]; \
    } \
    uvec2 name##_word2(uint page, uint byte) { return name##_buf.v[(page * pc.name##_stride + byte) >> 3]; }

#define KV_POOL_RW(name, binding_number) \
    layout(std430, set = 0, binding = binding_number) writeonly buffer name##_block { uvec2 v[]; } name##_buf; \
    void name##_store_word(uint page, uint byte, uint w) { \
        uint i = (page * pc.name##_stride + byte) >> 2; \
        name##_buf.v[i >> 1][i & 1u] = w; \
    } \
    void name##_store_word2(uint page, uint byte, uvec2 w) { name##_buf.v[(page * pc.name##_stride + byte) >> 3] = w; }

#endif
#endif
