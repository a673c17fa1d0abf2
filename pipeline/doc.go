// Package pipeline puts the operations of packages cache and attention together
// into the steps of DeepSeek-V4's attention, so that a server says what is in a
// step and not which kernels run.
//
// Decode is the attention of one kind of layer for a batch of decode tokens, from
// rotated queries and KV rows to attention outputs. Its commands are recorded once
// for a number of tokens and submitted for every step: whatever changes between
// steps (lengths, block tables, picks, queries) lies in device buffers.
package pipeline
