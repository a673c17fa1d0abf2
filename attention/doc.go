// Package attention builds index lists for the sparse MLA attention of DeepSeek-V4 and V4.1 and
// runs it, for decode over paged caches of any cache.Record and for prefill over a bf16 workspace.
//
// Every query head attends the same 512-number rows, which are key and value at once. For token t
// and head h with the valid rows k_j of its index lists (duplicates count as often as they occur):
//
//	s_j = scale * dot(q[t][h], k_j)
//	lse = ln sum_j exp(s_j)                                    sink not included
//	out = sum_j exp(s_j) k_j / (sum_j exp(s_j) + exp(sink_h))
//
// A row without any valid key gives out = 0 and lse = +inf, whatever the sink; a sink of -inf (or
// none) has no effect, a sink of +inf makes out 0. An index that is negative or lies outside its
// pool, and an index at or beyond the list's length, is masked: nothing is read for it, so stale or
// poisoned pages that it points to cannot show.
//
// One alphabet throughout: T tokens, R requests, H query heads (any number up to 128; powers of
// two are fast), D = 512 numbers of a row, page slots of a cache page, window and topk the widths
// of the two index lists.
//
// An operation X comes as NewX, which picks a build of its kernel for the device and compiles it,
// and X.Record, which checks every tensor and then records the launches; a *vk.ArgumentError
// (vk.ErrArgument) means that nothing was recorded. What changes from step to step (lengths,
// tables, positions) is read from device memory; what Record takes from Go values (T, widths,
// addresses) is fixed in the recording. XRef is the same operation in plain Go, and its
// definition; it takes slices of the sizes that its documentation gives and does not check them.
//
// Sources: FlashMLA (tests/ref.py, flash_mla/flash_mla_interface.py), vLLM
// (vllm/v1/attention/backends/mla, vllm/models/deepseek_v4).
package attention
