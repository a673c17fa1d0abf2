// Package projection runs what lies around the sparse attention of a DeepSeek-V4
// layer: the linear layers, the norms between them, the rotation of queries and
// keys, and the way of the attention's output back to the hidden state.
//
//	qr | kv = norms of hidden . [wq_a; wkv]          Linear, QKVNorm
//	q       = heads of qr . wq_b, normed and turned  Linear, QInsert
//	cache   : kv, turned and quantised               QInsert
//	o       = attention(q, cache)                    package attention
//	z       = groups of o, turned back, . wo_a       InverseRope or InverseRopeQuant, Linear
//	out     = z . wo_b                               Linear; LinearChain is both
//
// One alphabet throughout: T tokens, H query heads, 512 numbers of a head and of a K row (the last
// 64 carry rotary position), rank the width of the query's bottleneck, G groups of P = H/G heads in
// the output projection.
//
// An operation X comes as NewX, which picks a build of its kernel for the device
// and compiles it, and X.Record, which checks every tensor and then records the
// launches; a *vk.ArgumentError (vk.ErrArgument) means that nothing was recorded.
// What changes from step to step (positions, slots) is read from device memory; what
// Record takes from Go values (T, widths, addresses) is fixed in the recording. XRef
// is the same operation in plain Go, and its definition.
//
// Sources: vLLM (vllm/models/deepseek_v4, csrc/fused_deepseek_v4_qnorm_rope_kv_insert_kernel.cu),
// DeepGEMM (csrc/apis/einsum.hpp), DeepSeek's inference/model.py.
package projection
