// RECORD_FP8: 512 E4M3 codes with a UE8M0 scale for each 32. Slot t of a page of P slots:
//
//   bytes t*512 + d           code of number d
//         P*512 + t*16 + k    scale of numbers 32k .. 32k+31
const uint RECORD_FP8_ROW = 512u, RECORD_FP8_SCALES = 16u, RECORD_FP8_BLOCK = 32u;
const bool RECORD_FP8_NIBBLES = false;
