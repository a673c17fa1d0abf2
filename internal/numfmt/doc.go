// Package numfmt holds the small number formats of the DeepSeek-V4 attention
// path in plain Go: bf16, IEEE half, E4M3 (the finite flavour without
// infinity), E2M1 and the power-of-two scale byte UE8M0.
//
// It is the definition that the GLSL twins in shaders/lib are compared with,
// code by code. Every function works on bits, never on a logarithm, so the
// result does not depend on a math library, and every encoder rounds to the
// nearest value, ties to the even code.
package numfmt
