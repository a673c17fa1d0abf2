// Package cpu computes what is not attention on the processor's cores: embedding,
// hyper-connections, norms, router, experts and head.
//
// Products read weights as they are stored and decode them as they multiply. Blocks of GGUF are
// multiplied by activations that were rounded to whole numbers, by at most 2^-13 of the largest of
// 256. The order of a sum depends on the length of a row alone, so a token's result does not depend
// on what it is computed beside.
//
// Letters: T tokens, D hidden size, V vocabulary, n streams, E experts, k experts of a token,
// F width of an expert. Every activation is a float32; where the model stores bf16, it has been
// rounded to bf16.
package cpu
