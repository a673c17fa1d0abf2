// Package indexer runs DeepSeek-V4's lightning indexer: for every query token it
// scores the compressed entries of the token's request with a small dot product of
// several heads, and keeps the best of them for sparse attention.
//
//	logit[t][n] = s_k[n] * sum_h relu(sum_d q[t][h][d] * k[n][d]) * weights[t][h]
//
// for the entries 0 <= n < (p+1)/ratio that a token at position p may see, q and k quantised to FP8
// or MXFP4. The result is a list of entry numbers within the request, ascending, with -1 after the
// last one.
//
// [QueryQuant] rotates, quantises and weighs the queries, [Visible] counts the
// entries that each token may see, [Logits] scores them and [TopK] selects; [Select]
// does both in memory that does not grow with the context. The keys are in a
// cache.IndexKeyCache, where the compressor of package cache puts them. Prompts are
// scored from these pages, too: to gather keys to dense rows first, as vLLM does, takes
// memory for all of them and gives the same numbers.
//
// One alphabet throughout: T tokens, R requests, H indexer heads (1 to 128, 64 in DeepSeek-V4), 128
// numbers of a query head and of a key (the last 64 carry rotary position), topk the width of the
// result.
//
// An operation X comes as NewX, which picks a build of its kernel for the device
// and compiles it, and X.Record, which checks every tensor and then records the
// launches; a *vk.ArgumentError (vk.ErrArgument) means that nothing was recorded.
// What changes from step to step (lengths, tables, positions) is read from device
// memory; what Record takes from Go values (T, widths, addresses) is fixed in the
// recording. XRef is the same operation in plain Go, and its definition.
//
// Sources: vLLM (vllm/models/deepseek_v4, vllm/v1/attention/backends/mla/indexer.py),
// DeepGEMM (csrc/apis/attention.hpp, tests/test_attention.py).
package indexer
