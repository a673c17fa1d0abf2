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

// The same of a listing of ANV's: messages by what they ask for, a loop from its label to its
// while.
func TestReadGenListing(t *testing.T) {
	const text = `(W)     and (1)                   cr0           cr0<0>            0xfffffbcf      {A@1}
(W)     sync.nop (1)                            null                              {A@1}

L6:
        send.slm (16)             r7      r5     null:0  0x0  0x62403500   {I@1,$2}  // wr:1+0, rd:4; load.slm.d32x4.a32
        send.slm (16)             r7      r5     null:0  0x0  0x62403500   {I@1,$2}  // wr:1+0, rd:1; load.slm.d16u32.a32
(W)     send.slm (1)              r7      r5     null:0  0x0  0x62403500   {I@1,$2}  // wr:1+0, rd:1; fence.slm.threadgroup.none
(W)     send.gtwy (16)            null    r57    null:0  0x0  0x02000004   {I@1,$2}  // wr:1+0, rd:0; barrier_msg (16)

L7:
(W)     dpas.8x8 (16)             r1<0>:f       null              r25<0;0,0>:bf     r9<0;0,0>:bf {$1}
        mad (16)                  r119          r1     r2    r3
(f0.0)  break (16)                            jip:L8              uip:L8

L8:
        while (16)                            L7
        send.ugm (16)             r7      r5     null:0  0x0  0x62403500   {I@1,$2}  // wr:1+0, rd:4; load.ugm.d32x4.a64
        while (16)                            L6
`
	l := ReadGenListing(text)
	assert.Equal(t, Counts{Matrix: 1, Vector: 2, LDS: 2, Gather: 1, Memory: 1, Scalar: 3, Wait: 2, Barrier: 1}, l.All)
	assert.Equal(t, Counts{Matrix: 1, Vector: 1, Scalar: 2}, l.Loop)
}
