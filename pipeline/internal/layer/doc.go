// Package layer records the attention of one layer of a model, from hidden states to hidden
// states, for steps of T tokens:
//
//	qr | kv = norms of Hidden . [wq_a; wkv]
//	q       = heads of qr . wq_b, normed in V4, with RoPE; kv with RoPE, quantised and stored
//	entries = what the compressor makes of Hidden, stored
//	picks   = entries that the indexer picks for each token, by keys of Hidden or of the entries
//	o       = attention of q to the window and to picks, or to all entries, or to the window alone
//	Out     = (o with RoPE undone, by groups . wo_a) . wo_b
//
// Weights are used in the format that they are stored in. Activations between the operations
// are bf16, but the compressors' inputs, which are f32; sums are f32. With Config.Quantise
// products take them with as few bits as their weights have: see activations.go.
//
// Tokens of a step may be of any number of requests, and a request may have any number of
// consecutive tokens in it. An entry that a token of the step completes is visible to it and to
// later ones. How a sequence is divided into steps changes neither the caches nor what is picked
// from equal scores.
//
// The layers of one [model.LayerSpec] share a [Kernels]. It has a part for each subject, with the
// operations and the memory of that subject: lists, compressor, selection, mla, output. A
// [Layer] adds weights. The order of operations is data: see schedule.go. record.go says what
// each operation reads and writes.
//
// Source: vLLM vllm/models/deepseek_v4/attention.py; DeepSeek's inference/model.py.
package layer
