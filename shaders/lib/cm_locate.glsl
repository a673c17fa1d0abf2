// Where a row of two paged caches lies; goes with lib/cm_decode.glsl.
#ifndef LIB_CM_LOCATE_GLSL
#define LIB_CM_LOCATE_GLSL

// cm_row_byte, cm_scales_behind: where slot t of a page keeps its data, and how far behind them its
// scales lie. Bit 31 says RECORD_FP4 where the two caches have different records.
uint cm_row_byte(bool comp, uint t) {
    if (WIN_RECORD == RECORD_V4) return kv_row_byte(t);
    return comp ? record_row_byte(COMP_RECORD, t) : record_row_byte(WIN_RECORD, t);
}

uint cm_scales_behind(bool comp, uint t) {
    if (WIN_RECORD == RECORD_V4) return kv_scale_byte(comp ? COMP_PAGE : WIN_PAGE, t) - kv_row_byte(t);
    const uint in_comp = record_scale_byte(COMP_RECORD, COMP_PAGE, t) - record_row_byte(COMP_RECORD, t);
    const uint in_win = record_scale_byte(WIN_RECORD, WIN_PAGE, t) - record_row_byte(WIN_RECORD, t);
    return comp ? in_comp | (COMP_RECORD == RECORD_FP4 ? 1u << 31 : 0u) : in_win | (WIN_RECORD == RECORD_FP4 ? 1u << 31 : 0u);
}

// cm_locate: address of the row, cm_scales_behind, and the mask.
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
    const uint in_page = slot - page * (comp ? COMP_PAGE : WIN_PAGE);
    const uint64_t at = (comp ? pc.comp_addr : pc.win_addr)
        + uint64_t(page) * (comp ? pc.comp_stride : pc.win_stride) + cm_row_byte(comp, in_page);
    return uvec4(uint(at), uint(at >> 32), cm_scales_behind(comp, in_page), valid ? ~0u : 0u);
}

#endif
