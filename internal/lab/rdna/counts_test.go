package rdna

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

func TestBanked(t *testing.T) {
	var words [4096]uint32
	base := unsafe.Pointer(&words[0])
	for _, c := range []struct {
		name          string
		bytes         int
		kind          uint8
		at            func(lane int) int // bytes
		clocks, least uint64
	}{
		{"neighbours", 4, reads, func(i int) int { return 4 * i }, 1, 1},
		{"one word", 4, reads, func(int) int { return 64 }, 1, 1},
		{"one word, changed", 4, changes, func(int) int { return 64 }, 32, 1},
		{"one bank", 4, reads, func(i int) int { return 128 * i }, 32, 1},
		{"two lanes a bank", 4, writes, func(i int) int { return 8 * i }, 2, 1},
		{"eight bytes", 8, reads, func(i int) int { return 8 * i }, 2, 2},
		{"sixteen bytes", 16, reads, func(i int) int { return 16 * i }, 4, 4},
		{"sixteen bytes, one bank", 16, writes, func(i int) int { return 128 * i }, 32, 4},
		{"halves", 2, reads, func(i int) int { return 2 * i }, 1, 1},
	} {
		var p [64]unsafe.Pointer
		for i := range 32 {
			p[i] = unsafe.Add(base, c.at(i))
		}
		var n tally
		n.banked(base, &p, 1<<32-1, 32, c.bytes, c.kind)
		assert.Equal(t, []uint64{c.clocks, c.least}, []uint64{n.clocks, n.least}, c.name)
	}
}

func TestMoved(t *testing.T) {
	var words [4096]uint32
	base := unsafe.Pointer(uintptr(unsafe.Pointer(&words[0])) &^ 127)
	var p [64]unsafe.Pointer
	for i := range 32 {
		p[i] = unsafe.Add(base, 256+16*i)
	}
	var n tally
	n.moved(&p, 1<<32-1, 16)
	n.moved(&p, 1, 4)
	assert.Equal(t, []uint64{516, 5}, []uint64{n.bytes, n.lines})
}

func TestVectorClocks(t *testing.T) {
	for _, c := range []struct {
		op         string
		lanes, gfx int
		clocks     uint64
	}{
		{"v_wmma_f32_16x16x16_f16", 32, 11, 32}, {"v_wmma_f32_16x16x16_bf16", 32, 12, 16}, {"v_wmma_f32_16x16x16_fp8_fp8", 32, 12, 8},
		{"v_exp_f32", 32, 11, 4}, {"v_exp_f32", 64, 11, 8}, {"v_add_f32", 32, 10, 1}, {"v_dot2c_f32_f16", 64, 10, 2},
		{"v_dual_mov_b32 :: v_dual_add_f32", 32, 11, 1}, {"ds_load_b64", 32, 11, 0}, {"s_barrier", 64, 10, 0},
	} {
		assert.Equal(t, c.clocks, vectorClocks(c.op, c.lanes, c.gfx), "%+v", c)
	}
}

func TestClass(t *testing.T) {
	for op, class := range map[string]string{
		"v_wmma_f32_16x16x16_f16": ClassMatrix, "v_dot2c_f32_f16": ClassDot, "v_exp_f32": ClassSlow, "v_s_rcp_f32": ClassSlow,
		"v_dual_mov_b32 :: v_dual_add_f32": ClassVector, "s_load_b64": ClassLoads, "s_buffer_load_dword": ClassLoads,
		"s_add_u32":   ClassScalar,
		"ds_load_b64": ClassShared, "global_load_b32": ClassMemory, "buffer_store_dword": ClassMemory, "s_cbranch_scc1": ClassFlow,
		"s_waitcnt": ClassFlow, "s_barrier": ClassFlow, "v_expand_nothing": ClassVector,
	} {
		assert.Equal(t, class, Class(op), op)
	}
}
