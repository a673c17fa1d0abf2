// RECORD_V4: 448 E4M3 codes with a UE8M0 scale for each 64, and 64 bf16, as lib/kv_page.glsl lays
// them out. Kernels have code of their own for the bf16 part.
const uint RECORD_V4_ROW = KV_ROW_BYTES, RECORD_V4_SCALES = KV_SCALE_BYTES, RECORD_V4_BLOCK = KV_BLOCK;
const bool RECORD_V4_NIBBLES = false;
