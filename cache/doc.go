// Package cache keeps the paged K caches of the attention of DeepSeek-V4 and V4.1: the
// byte layout of a page, the pages themselves in device memory, and the kernels that fill
// pages and read them back.
//
// # Pages and slots
//
// A slot holds one cached vector of 512 numbers. A [Record] says how: V4's has 584 bytes, with 448
// E4M3 codes and the last 64 numbers in bf16; V4.1's rows have 528 bytes of E4M3 codes and its
// compressed entries 288 of E2M1 codes, with their scales. [Layout] says where in a page they lie,
// and names the record. Slot s of a pool is slot s%page of page s/page; slot ids are what slot
// mappings (int64) and index lists (int32) contain, and a negative one is none.
//
// # Device side
//
// [KVCache] is the memory. [Insert] quantises rows into it, [Gather] and
// [GatherSlots] unpack rows of it to bf16, [SlotMapping] makes the slot mapping of a
// step from block tables. Each has a reference in plain Go beside it, named in its
// documentation, which is its definition.
//
// # Compressed caches
//
// A [Compression] makes one entry of every Ratio tokens. [SaveState] keeps what
// each token contributes in a [StateCache], paged like the rest; [Compress] turns the
// window of every token that ends a group into an entry of a KVCache or of an
// [IndexKeyCache]. Windows are addressed by position, so that a sequence may be cut
// into steps anywhere, processed again from any position, or moved to other pages,
// and gives the same bytes. Those of V4.1 have Compression.Latent: entry and indexer
// key are both made of a latent that is rounded to bf16.
//
// Alphabet of the shapes: T tokens, R requests, D = 512, W entries of a table row,
// page slots per page, stride bytes per page.
package cache
