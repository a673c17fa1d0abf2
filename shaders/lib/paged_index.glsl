// Finding a slot through a block table, without ever reading outside the table.
// The including kernel declares a buffer block_table { int v[]; } of [requests, table_width]
// and has pc.requests and pc.table_width.
#ifndef LIB_PAGED_INDEX_GLSL
#define LIB_PAGED_INDEX_GLSL

// paged_slot: the global slot of entry `at` of request `request`; -1 if the request or the
// entry is outside the table or its page is not allocated (negative).
int paged_slot(int request, uint at, uint page) {
    const uint column = at / page;
    if (uint(request) >= pc.requests || column >= pc.table_width) return -1;
    const int block = block_table.v[uint(request) * pc.table_width + column];
    return block < 0 ? -1 : block * int(page) + int(at % page);
}

#endif
