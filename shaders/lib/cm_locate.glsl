// Where a row of two paged FP8 caches lies; goes with lib/cm_decode.glsl.
#ifndef LIB_CM_LOCATE_GLSL
#define LIB_CM_LOCATE_GLSL

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
    const uint in_page = slot - page * (comp ? COMP_PAGE : WIN_PAGE);
    const uint64_t at = (comp ? pc.comp_addr : pc.win_addr)
        + uint64_t(page) * (comp ? pc.comp_stride : pc.win_stride) + kv_row_byte(in_page);
    return uvec4(uint(at), uint(at >> 32), kv_scale_byte(comp ? COMP_PAGE : WIN_PAGE, in_page) - kv_row_byte(in_page), valid ? ~0u : 0u);
}

#endif
