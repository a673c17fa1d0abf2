// RECORD_FP4: 512 E2M1 codes with an E4M3 scale for each 16. Slot t of a page of P slots:
//
//   bytes t*256 + i           codes of numbers 2i (low half) and 2i+1
//         P*256 + t*32 + k    scale of numbers 16k .. 16k+15
const uint RECORD_FP4_ROW = 256u, RECORD_FP4_SCALES = 32u, RECORD_FP4_BLOCK = 16u;
const bool RECORD_FP4_NIBBLES = true;
