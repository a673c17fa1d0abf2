// Package gpu computes what is not attention on the device of the attention, in the same
// submission: embedding, hyper-connections, norms, router, experts and head, by kernels of its own
// that pipeline.EngineOptions.Between records.
//
// Products read weights as they are stored and decode them as they multiply. A team of 32
// invocations has some rows of a matrix and adds up in an order that nothing else decides, so a
// token's result does not depend on what it is computed beside of.
//
// Letters: T tokens, D hidden size, V vocabulary, n streams, E experts, k experts of a token,
// F width of an expert. A pair is a token and one of its experts, numbered t*k + i.
package gpu
