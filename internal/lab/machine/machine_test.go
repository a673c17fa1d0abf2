package machine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// edit is a listing with one place written otherwise.
type edit struct{ what, old, with, want string }

func holds(t *testing.T, check func(string) []string, text string, edits []edit) {
	t.Helper()
	assert.Empty(t, check(text))
	for _, e := range edits {
		assert.Equal(t, 1, strings.Count(text, e.old), e.what)
		assert.Contains(t, strings.Join(check(strings.Replace(text, e.old, e.with, 1)), "\n"), e.want, e.what)
	}
}

// A loop with an early exit, as RADV lists it: 19 words.
const amd = `BB0:
	s_load_b128 s[4:7], s[0:1], null                            ; f4080100 f8000000
	s_mov_b32 s2, 0                                             ; be820080
BB1:
	s_add_i32 s2, s2, 1                                         ; 81028102
	s_cmp_ge_u32 s2, s5                                         ; bf090502
	s_cbranch_scc1 BB4                                          ; bfa20007
BB2:
	v_add_f32_e32 v0, 0x40490fdb, v1                            ; 060002ff 40490fdb
	s_barrier                                                   ; bfbd0000
	s_cbranch_vccnz BB1                                         ; bfa4fff9
	s_branch BB5                                                ; bfa00006
	s_nop 0                                                     ; bf800000
	(then repeated 1 times)
BB4:
	s_waitcnt vmcnt(0)                                          ; bf8903f7
(invalid instruction)                                        ; 7f20150a
	buffer_store_b32 v0, off, s[4:7], 0                         ; e0680000 80010000
BB5:
	s_endpgm                                                    ; bfb00000
`

func TestCode(t *testing.T) {
	code := Code(amd)
	assert.Len(t, code, 18)
	assert.Equal(t, []uint32{0xf4080100, 0xf8000000, 0xbe820080, 0x81028102}, code[:4])
	assert.Equal(t, []uint32{0xbf800000, 0xbf800000}, code[11:13], "repeated")
}

func TestAMD(t *testing.T) {
	holds(t, AMD, amd, []edit{
		{"a block that was never emitted, before the first", "BB0:", "BB9:\nBB0:", "BB9 has no code: it is at the first word, BB1 is not"},
		{"and after it", "BB0:", "BB0:\nBB9:", "BB9 has no code"},
		{"a branch to one", "bfa20007", "bfa2fff8", "word 5: s_cbranch_scc1 to BB4 goes to word -2, the block is at word 13"},
		{"a label without a block", "BB4:\n", "", "word 5: s_cbranch_scc1 to BB4, which is missing"},
		{"a block that is there twice", "BB2:", "BB1:", "BB1 begins at word 3 and at word 6"},
		{"a word too far", "bfa20007", "bfa20008", "goes to word 14, the block is at word 13"},
		{"into an instruction", "bfa20007", "bfa20001", "goes to word 7 of 18, where no instruction begins"},
		{"beyond the code", "bfa00006", "bfa00016", "word 10: s_branch goes to word 33 of 18, where no instruction begins"},
		{"no end", "s_endpgm ", "s_sleep 0", "word 17: s_sleep runs off the end"},
		{"a loop without an end", "s_endpgm                                                    ; bfb00000",
			"s_branch BB5                                                ; bfa0ffff", "word 0: no end is reached from s_load_b128"},
		{"code that nothing leads to", "s_nop 0 ", "s_sleep 0", "word 11: s_sleep is never reached"},
		{"a program that begins elsewhere", "BB0:\n", "", "the first word is not the first block's"},
		{"a branch to nowhere", "s_branch BB5", "s_branch 6  ", "word 10: s_branch names no block"},
		{"a jump by a register", "s_barrier ", "s_setpc_b64 s[2:3]", "word 8: where s_setpc_b64 goes is not known"},
		{"an instruction without code", "; bfbd0000", "", "has no code"},
		{"code that is none", "bfbd0000", "barrier", "has no code"},
	})
	assert.Equal(t, []string{"no instructions"}, AMD(""))
}

// The fault that this was written for, attn_decode_cm by Mesa 26.2.6: the exit of the loop, BB4,
// was left out, so that its place stayed 0, and the branch goes there.
func TestMissingExit(t *testing.T) {
	const text = `BB4:
BB0:
	s_mov_b32 s14, s1                                           ; be8e0001
	s_movk_i32 s1, 0x8000                                       ; b0018000
BB1:
	v_wmma_f32_16x16x16_f16 v[8:15], v[16:23], v[24:31], v[8:15] ; cc404008 1c223110
	s_cbranch_scc1 BB4                                          ; bfa2fffb
BB3:
	s_barrier                                                   ; bfbd0000
	s_cbranch_vccnz BB1                                         ; bfa4fffb
	s_endpgm                                                    ; bfb00000
`
	assert.Equal(t, []string{"BB4 has no code: it is at the first word, BB1 is not"}, AMD(text))
}

// A program may begin with its loop.
func TestLoopFirst(t *testing.T) {
	const text = `BB0:
BB1:
	s_cbranch_scc1 BB3                                          ; bfa20002
	s_barrier                                                   ; bfbd0000
	s_branch BB1                                                ; bfa0fffd
BB3:
	s_endpgm                                                    ; bfb00000
`
	assert.Empty(t, AMD(text))
}

const intel = `(W)     and (1)                   cr0           cr0<0>            0xfffffbcf      {A@1}
(f0.0)  if (16)                               jip:L0              uip:L1
        mov (16)                  r17           r0.1<0>
        else (16)                             jip:L1              uip:L1

L0:
        mov (16)                  r18           r0.1<0>

L1:
        endif (16)                            L2

L2:
        sync.nop (16)                           null                              {I@7}
(f0.0)  if (16)                               jip:L3              uip:L3
(f0.0)  break (16)                            jip:L3              uip:L4

L3:
        endif (16)                            L4
        add (16)                  r5:d          r66<0>:d          r4:d            {Compacted,I@5}

L4:
        while (16)                            L2
(W)     send.gtwy (16)            null    r127   null:0  0x00000000  0x02000000   {EOT,I@1}  // wr:1+0, rd:0; open (16)
`

func TestIntel(t *testing.T) {
	holds(t, Intel, intel, []edit{
		{"a label without a place", "L0:\n", "", "instruction 1: if to L0, which is missing"},
		{"one that is there twice", "L3:", "L0:", "L0 is there twice"},
		{"a loop that goes on", "while (16)                            L2", "while (16)                            L4", "break to L4, which ends no loop around it"},
		{"a branch back", "if (16)                               jip:L3", "if (16)                               jip:L2", "the wrong way"},
		{"a loop's end ahead", "L2\n(W)     send", "L5\nL5:\n(W)     send", "while to L5, instruction 12, the wrong way"},
		{"a label at the end", "L0              uip:L1", "L9              uip:L1", "which is missing"},
		{"an if that stays open", "        endif (16)                            L4\n", "", "closes \"if\""},
		{"one that was not opened", "        sync.nop", "        endif (16)  L3\n        sync.nop", "endif closes \"loop\""},
		{"a break out of no loop", "uip:L4", "uip:L3", "break to L3, which ends no loop around it"},
		{"a jump", "        add (16) ", "        jmpi (16)", "where jmpi goes is not known"},
		{"no end", "EOT,", "", "the last instruction, send, does not end the thread"},
	})
	assert.Equal(t, []string{"no instructions"}, Intel(""))
}
