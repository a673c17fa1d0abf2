package pipelines

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A listing's instructions by class, and the loop that counts: the one that multiplies matrices,
// or else the longest of those without a loop inside.
func TestReadListing(t *testing.T) {
	const text = `BB0:
	s_load_b128 s[0:3], s[0:1], null                            ; f4080000
	v_mov_b32_e32 v0, 0                                         ; 7e000280
BB1:
	ds_load_b64 v[2:3], v1                                      ; d9d80000
	ds_load_u16_d16 v4, v1 offset:2                             ; d8980002
	s_waitcnt lgkmcnt(0)                                        ; bf89fc07
BB2:
	v_wmma_f32_16x16x16_f16 v[8:15], v[16:23], v[24:31], v[8:15] ; cc404008
	v_dual_mul_f32 v0, v1, v2 :: v_dual_add_f32 v3, v4, v5      ; c8c80000
	s_cbranch_scc1 BB2                                          ; bfa20000
BB3:
	s_barrier                                                   ; bfbd0000
	v_add_f32_e32 v0, v1, v2                                    ; 06000501
	v_dot2_f32_f16 v0, v1, v2, v0                               ; cc130000
	global_load_b128 v[0:3], v[4:5], off                        ; ee000000
	s_cbranch_scc1 BB1                                          ; bfa20000
	s_endpgm                                                    ; bfb00000
`
	l := ReadListing(text)
	assert.Equal(t, Counts{Matrix: 1, Dot: 1, Vector: 3, LDS: 2, Gather: 1, Memory: 1, Scalar: 4, Wait: 1, Barrier: 1}, l.All)
	assert.Equal(t, Counts{Matrix: 1, Vector: 1, Scalar: 1}, l.Loop)
	assert.Equal(t, 2, l.Loop.Issued())
	assert.Equal(t, Counts{}, ReadListing("BB0:\n\ts_endpgm\n").Loop)

	const plain = `BB0:
	v_nop
BB1:
	v_add_f32_e32 v0, v1, v2
	s_cbranch_scc1 BB1
BB2:
	v_add_f32_e32 v0, v1, v2
	v_add_f32_e32 v0, v1, v2
	s_cbranch_scc1 BB2
BB3:
	s_branch BB0
`
	assert.Equal(t, Counts{Vector: 2, Scalar: 1}, ReadListing(plain).Loop)
}
