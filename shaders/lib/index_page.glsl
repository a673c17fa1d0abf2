// The page of indexer keys: 128 numbers a slot, as E4M3 (FP8) or E2M1 codes (MXFP4).
//
//   FP8    bytes t*128 .. +127          codes of slot t of a page of P slots
//          P*128 + t*4 .. +3            its scale, a little-endian f32
//   MXFP4  bytes t*64 .. +63            codes, value 2i in the low nibble of byte i, 2i+1 in the
//   high
//          P*64 + t*4 + b               UE8M0 scale of values 32b .. 32b+31, b = 0..3
//
// Page strides are multiples of 16 bytes. A pool of such pages is declared with the macros
// of kv_page.glsl.
#ifndef LIB_INDEX_PAGE_GLSL
#define LIB_INDEX_PAGE_GLSL

const uint INDEX_DIM = 128u;   // numbers of a key
const uint INDEX_FP8 = 1u;     // formats, numbered as cache.IndexKeyFormat
const uint INDEX_MXFP4 = 2u;
const uint INDEX_BLOCK = 32u;  // MXFP4 values that share a scale

uint index_row_bytes(uint format) { return format == INDEX_MXFP4 ? INDEX_DIM / 2u : INDEX_DIM; }

// index_row_byte, index_scale_byte: where slot t of a page of page_slots slots keeps its
// codes and its 4 scale bytes.
uint index_row_byte(uint format, uint t) { return t * index_row_bytes(format); }
uint index_scale_byte(uint format, uint page_slots, uint t) { return page_slots * index_row_bytes(format) + t * 4u; }

#endif
