// Where a row of two paged caches lies; goes with lib/cm_decode.glsl.
#ifndef LIB_CM_LOCATE_GLSL
#define LIB_CM_LOCATE_GLSL

const bool RECORDS = WIN_RECORD != RECORD_V4; // cm_record_row.glsl has the rows of other records

// With bf16 they lie in kv_s times 2^-14, as E2M1 codes do that were moved to binary16's place. So
// scores come out too small, and so does acc: in the end l is made as small, and m grows instead.
#ifdef CM_BF16
const uint CM_SMALL = RECORDS ? 14u : 0u;
#else
const uint CM_SMALL = 0u;
#endif
#define CM_SCORE_SCALE (pc.scale_log2e * uintBitsToFloat((127u + CM_SMALL) << 23))
#define CM_FINAL_L(l) ((l) * uintBitsToFloat((127u - CM_SMALL) << 23))
#define CM_FINAL_M(m) ((m) + float(CM_SMALL))

// CM_POSITION: where a word of 8 numbers lies in its row of kv_s; CM_WORD_AT is the inverse. An
// invocation's words of RECORD_FP8 or RECORD_FP4 are neighbours in memory, and go there by twos, so
// that the columns of a matrix stay neighbours. Where a kernel does not need that, CM_TURN is 1:
// halves of words, stored one by one, then meet in no bank. CM_NEXT is from the first of two to the
// second.
#ifndef CM_TURN
#define CM_TURN 2u
#define CM_NEXT 1u
#endif
#define CM_POSITION(word) \
    (RECORDS ? (word) / CM_TURN % (64u / CM_TURN / ROW_PARTS) * (CM_TURN * ROW_PARTS) \
               + (word) / (64u / ROW_PARTS) * CM_TURN + (word) % CM_TURN : (word))
#define CM_WORD_AT(place) \
    (RECORDS ? (place) / 2u % ROW_PARTS * (64u / ROW_PARTS) + (place) / (2u * ROW_PARTS) * 2u + (place) % 2u : (place))

// Constants, for what is looked up several times has to be short: bytes of a slot's data and of its
// scales in each cache, and the flag of its rows.
const uint WIN_ROW_BYTES = RECORD_OF(WIN_RECORD, ROW), COMP_ROW_BYTES = RECORD_OF(COMP_RECORD, ROW);
const uint WIN_SCALE_BYTES = RECORD_OF(WIN_RECORD, SCALES), COMP_SCALE_BYTES = RECORD_OF(COMP_RECORD, SCALES);
const bool WIN_NIBBLES = RECORD_OF(WIN_RECORD, NIBBLES), COMP_NIBBLES = RECORD_OF(COMP_RECORD, NIBBLES);
const uint WIN_FLAG = WIN_NIBBLES ? 1u << 31 : 0u, COMP_FLAG = COMP_NIBBLES ? 1u << 31 : 0u;

// cm_in_page: where slot t of a page keeps its data, and how far behind them its scales lie, with
// bit 31 where they are of nibbles.
uvec2 cm_in_page(bool comp, uint t) {
    if (WIN_RECORD == RECORD_V4) {
        const uint row = kv_row_byte(t);
        return uvec2(row, kv_scale_byte(comp ? COMP_PAGE : WIN_PAGE, t) - row);
    }
    const uint row = t * (comp ? COMP_ROW_BYTES : WIN_ROW_BYTES), scale = t * (comp ? COMP_SCALE_BYTES : WIN_SCALE_BYTES);
    return uvec2(row, (comp ? COMP_PAGE * COMP_ROW_BYTES : WIN_PAGE * WIN_ROW_BYTES) + scale - row | (comp ? COMP_FLAG : WIN_FLAG));
}

// cm_locate: address of the row, how far behind it its scales lie, and the mask.
uvec4 cm_locate(uvec2 found, uint j, bool inside) {
    bool comp = j < comp_len_;
    uint slot = comp ? found.x : found.y; // a negative index is a very large one
    uint page = comp ? slot / COMP_PAGE : slot / WIN_PAGE;
    const bool valid = inside && int(slot) >= 0 && page < (comp ? pc.comp_pages : pc.win_pages);
    if (!valid) { // slot 0 of a pool that exists stands in; cm_keep zeroes it
        comp = pc.win_pages == 0u;
        slot = 0u;
        page = 0u;
    }
    const uvec2 in_page = cm_in_page(comp, slot - page * (comp ? COMP_PAGE : WIN_PAGE));
    const uint64_t at = (comp ? pc.comp_addr : pc.win_addr)
        + uint64_t(page) * (comp ? pc.comp_stride : pc.win_stride) + in_page.x;
    return uvec4(uint(at), uint(at >> 32), in_page.y, valid ? ~0u : 0u);
}

#endif
