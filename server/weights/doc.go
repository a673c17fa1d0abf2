// Package weights reads the part of a DeepSeek-V4 checkpoint that is not attention: embedding,
// hyper-connections, norms, router, experts and head.
//
// Matrices stay in the mapped files, in the format that they are stored in. Only what is small
// is copied: norms, biases, tables of experts, and the scales of FP8 matrices.
//
// Letters: T tokens, D hidden size, V vocabulary, n streams, E experts, k experts of a token,
// F width of an expert.
package weights
