package rdna

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMatrix multiplies small integers, which are exact in every format: RDNA3 has a row of A and a
// column of B in lanes 0 to 15 and again in 16 to 31, RDNA4 half of each in both; sums lie two rows
// a register in RDNA3, and rows 8 to 15 in the upper lanes in RDNA4.
func TestMatrix(t *testing.T) {
	encode := map[string]func(x int) uint32{
		"f16":     func(x int) uint32 { return toHalf(float64(x)) },
		"bf16":    func(x int) uint32 { return asBits(float32(x)) >> 16 },
		"fp8_fp8": func(x int) uint32 { return map[int]uint32{-2: 0xc0, -1: 0xb8, 0: 0, 1: 0x38, 2: 0x40}[x] },
	}
	a := func(m, k int) int { return (m*3+k*k)%5 - 2 }
	b := func(k, n int) int { return (k+n*7)%5 - 2 }
	for _, c := range []struct {
		gfx  int
		ty   string
		bits int
		n    int // registers of A
	}{{11, "f16", 16, 8}, {11, "bf16", 16, 8}, {12, "f16", 16, 4}, {12, "bf16", 16, 4}, {12, "fp8_fp8", 8, 2}} {
		t.Run(fmt.Sprint(c.gfx, c.ty), func(t *testing.T) {
			w, _ := testWave(c.gfx, 32)
			text := fmt.Sprintf("v_wmma_f32_16x16x16_%s v[32:39], v[0:%d], v[16:%d], v[32:39]", c.ty, c.n-1, 15+c.n)
			x := compile(c.gfx, 32, text, 0)
			require.NotEqual(t, "unknown", x.op)
			for lane := range 32 {
				for at := range c.n * 32 / c.bits {
					k := at
					if c.gfx == 12 {
						k += 8 * (lane / 16)
					}
					reg, shift := at*c.bits/32, at*c.bits%32
					w.v[reg][lane] |= encode[c.ty](a(lane%16, k)) << shift
					w.v[16+reg][lane] |= encode[c.ty](b(k, lane%16)) << shift
				}
				for r := range 8 {
					w.v[32+r][lane] = asBits(100)
				}
			}
			x.run(w)
			for lane := range 32 {
				for r := range 8 {
					m := 2*r + lane/16
					if c.gfx == 12 {
						m = r + lane/16*8
					}
					want := 100
					for k := range 16 {
						want += a(m, k) * b(k, lane%16)
					}
					require.Equal(t, float32(want), asFloat(w.v[32+r][lane]), "register %d, lane %d", r, lane)
				}
			}
			assert.Empty(t, w.k.m.Faults())
			w.v[0][3]++
			x.run(w)
			assert.Equal(t, c.gfx == 11, len(w.k.m.Faults()) == 1, "a row that lanes 16 to 31 do not repeat")
		})
	}
}

func TestConditions(t *testing.T) {
	for _, c := range []struct {
		name  string
		set   func(w *wave)
		taken bool
	}{
		{"scc0", func(w *wave) { w.scc = false }, true}, {"scc0", func(w *wave) { w.scc = true }, false},
		{"scc1", func(w *wave) { w.scc = false }, false}, {"scc1", func(w *wave) { w.scc = true }, true},
		{"execz", func(w *wave) { w.setExec(0) }, true}, {"execz", func(w *wave) { w.setExec(1) }, false},
		{"execnz", func(w *wave) { w.setExec(0) }, false}, {"execnz", func(w *wave) { w.setExec(1 << 40) }, true},
		{"vccz", func(w *wave) { w.setMask(vcc, 0) }, true}, {"vccz", func(w *wave) { w.setMask(vcc, 1<<40) }, false},
		{"vccnz", func(w *wave) { w.setMask(vcc, 0) }, false}, {"vccnz", func(w *wave) { w.setMask(vcc, 1<<40) }, true},
	} {
		w, _ := testWave(11, 64)
		x := compile(11, 64, "s_cbranch_"+c.name+" 5", 0)
		require.Equal(t, branches, x.flow)
		c.set(w)
		branch(x.run, 77)(w)
		assert.Equal(t, c.taken, w.pc == 77, c.name)
	}
}

// No kernel has matrices with waves of 64, whose registers hold them in another way.
func TestMatrixOfWave64(t *testing.T) {
	w, _ := testWave(11, 64)
	w.prog.insts[0] = compile(11, 64, "v_wmma_f32_16x16x16_f16 v[32:35], v[0:7], v[8:15], v[32:35]", 0)
	w.k.l, w.k.now = &launch{}, make([]uint64, 1)
	w.run()
	faults := w.k.m.Faults()
	require.Len(t, faults, 1)
	assert.Contains(t, faults[0].Error(), "matrices of waves of 64 are not known")
	assert.Contains(t, faults[0].Error(), "v_wmma_f32_16x16x16_f16")
}

// What is not known is a fault that names the instruction, never a guess.
func TestUnknown(t *testing.T) {
	for _, text := range []string{
		"v_frobnicate_f32 v0, v1", "v_add_f32_e32 v0, v1", "v_add_f32_e32 v0, v1, q2", "v_add_f32_e32 v0, v1, v2 frob:1",
		"v_add_nc_u32_e64 v0, -v1, v2", "v_mul_lo_u32 v0, v1, v2 clamp", "v_mov_b32_dpp v0, v1 row_newbcast:1", "v_mov_b32_e32 v0, 1e99x",
		"v_mov_b32_dpp v0, v1 row_ror:4 row_mask:0x3 bank_mask:0xf", "s_frob_b32 s0, s1", "s_add_u32 s0, v1, s2", "ds_frob_b32 v0, v1",
		"global_load_b32 v0, v[2:3]", "buffer_load_b32 v0, v1, s[4:7], 0 idxen", "ds_swizzle_b32 v0, v1 offset:swizzle(FROB,1)",
		"v_wmma_i32_16x16x16_iu8 v[0:7], v[8:11], v[12:15], v[0:7]", "v_cmp_frob_f32_e32 vcc_lo, v1, v2", "s_cbranch_cdbgsys 3",
		"v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v0, v2", "v_lshlrev_b64 v[0:1], 3, 1.0", "global_atomic_sub_u32 v0, v1, v2, s[0:1] glc",
	} {
		x := compile(11, 32, text, 0)
		assert.Equal(t, "unknown", x.op, text)
		w, _ := testWave(11, 32)
		w.k.l = &launch{}
		w.prog = &program{number: 3, insts: []inst{x}}
		w.k.now = make([]uint64, 1)
		w.run()
		faults := w.k.m.Faults()
		require.Len(t, faults, 1, text)
		assert.Contains(t, faults[0].Error(), text)
		assert.True(t, w.ended && w.k.l.failed.Load())
	}
}

func TestFaultsOfMemory(t *testing.T) {
	for text, c := range map[string]struct{ before, what string }{
		"global_load_b32 v0, v[2:3], off":             {"v2=8192 v3=0 exec=1", "a read outside all memory: 0x2000"},
		"global_store_b64 v[2:3], v[4:5], off":        {"v2=5116 v3=0 exec=1", "a write outside all memory: 0x13fc"},
		"buffer_load_b64 v[0:1], v2, s[4:7], 0 offen": {"v2=60 s4=4096 s5=0 s6=64 exec=1", "a read of 8 bytes beyond a buffer of 64: 0x3c"},
		"buffer_store_b32 v0, v2, s[4:7], 0 offen":    {"v2=64 s4=4096 s5=0 s6=64 exec=1", "a write of 4 bytes beyond a buffer of 64: 0x40"},
		"s_buffer_load_b64 s[0:1], s[4:7], 0x40":      {"s4=4096 s5=0 s6=64", "a read of 8 bytes beyond a buffer of 64: 0x40"},
		"s_load_b32 s0, s[2:3], 0x0":                  {"s2=64 s3=0", "a read outside all memory: 0x40"},
		"ds_load_b32 v0, v1":                          {"v1=1024 exec=1", "a read of 4 bytes beyond shared memory of 1024: 0x400"},
		"ds_store_b64 v0, v[2:3]":                     {"v0=2 exec=1", "an access of shared memory that is not aligned: 0x2"},
	} {
		x := compile(11, 32, text, 0)
		require.NotEqual(t, "unknown", x.op, text)
		w, mem := testWave(11, 32)
		w.prog.insts[0] = x
		apply(t, w, mem, c.before, func(p *uint32, x uint32, _ string) { *p = x })
		x.run(w)
		faults := w.k.m.Faults()
		require.Len(t, faults, 1, text)
		assert.Contains(t, faults[0].Error(), c.what)
	}
}

// TestRaces has two waves use one word, in the same phase or with a barrier between.
func TestRaces(t *testing.T) {
	const load, store, add = "ds_load_b32 v0, v1", "ds_store_b32 v1, v0", "ds_add_u32 v1, v0"
	for _, c := range []struct {
		first, second string
		barrier, race bool
	}{
		{load, store, false, true}, {store, load, false, true}, {store, store, false, true}, {load, load, false, false},
		{add, add, false, false}, {add, load, false, true}, {store, add, false, true},
		{store, load, true, false}, {load, store, true, false},
	} {
		one, _ := testWave(11, 32)
		two := &wave{k: one.k, prog: one.prog, number: 1, size: 32, all: one.all, view: one.view}
		two.setExec(1)
		one.setExec(1)
		one.prog.insts = []inst{compile(11, 32, c.first, 0), compile(11, 32, c.second, 0)}
		one.v[1][0], two.v[1][0], two.at = 64, 64, 1
		one.prog.insts[0].run(one)
		if c.barrier {
			two.epoch = 1
		}
		two.prog.insts[1].run(two)
		faults := one.k.m.Faults()
		assert.Equal(t, c.race, len(faults) == 1, "%s, %s", c.first, c.second)
		if c.race {
			assert.Contains(t, faults[0].Error(), c.second)
			assert.Contains(t, faults[0].Other, c.first)
		}
	}
}

// TestPackets executes what moves data without a kernel.
func TestPackets(t *testing.T) {
	m := &Machine{seen: map[Fault]bool{}}
	m.queue = queue{m: m, regs: map[uint32]uint32{}}
	mem, code := make([]uint32, 64), []uint32{}
	packet := func(op uint32, data ...uint32) {
		code = append(code, 3<<30|uint32(len(data)-1)<<16|op<<8)
		code = append(code, data...)
	}
	packet(pktWriteData, 5<<8, 4096, 0, 11, 12)
	packet(pktCopyData, 1<<16|5<<8|2, 4096, 0, 4112, 0)
	packet(pktCopyData, 5<<8|5, 99, 0, 4120, 0)
	packet(pktDMAData, 2<<29, 7, 0, 4128, 0, 8)
	packet(pktDMAData, 0, 4096, 0, 4136, 0, 8)
	packet(pktReleaseMem, 0, 1<<29, 4144, 0, 5, 6)
	packet(pktReleaseMem, 0, 2<<29, 4152, 0, 5, 6)
	packet(pktSetShReg, 3, 21, 22)
	packet(pktSetShRegPairs, 5, 23)
	packet(pktSetShPackedN, 2, 6|7<<16, 24, 25)
	code = append(code, 0xffff1000)
	packet(pktDMAData, 0, 64, 0, 4136, 0, 8)
	packet(0xff, 0)
	m.memory.put(span{4096, 256, unsafe.Pointer(&mem[0])})
	m.memory.put(span{8192, uint64(4 * len(code)), unsafe.Pointer(&code[0])})
	m.submit(8192, len(code))
	assert.Equal(t, []uint32{11, 12, 0, 0, 11, 12, 99, 0, 7, 7, 11, 12, 5, 0, 5, 6}, mem[:16])
	assert.Equal(t, map[uint32]uint32{3: 21, 4: 22, 5: 23, 6: 24, 7: 25}, m.queue.regs)
	faults := m.Faults()
	require.Len(t, faults, 2)
	assert.Equal(t, "rdna: a DMA reads outside all memory: 0x40", faults[0].Error())
	assert.Equal(t, "rdna: a packet that is not known: 0xff", faults[1].Error())
}

// TestLaunch reads a dispatch's registers, with a part of the last workgroup and another first one.
func TestLaunch(t *testing.T) {
	m := &Machine{seen: map[Fault]bool{}, programs: map[uint64][]*program{}, gfx: 11}
	q := queue{m: m, regs: map[uint32]uint32{}}
	set := func(at, x uint32) { q.regs[(at-shRegs)/4] = x }
	code := []uint32{1, 2, 3, 4}
	m.memory.put(span{1 << 16, 16, unsafe.Pointer(&code[0])})
	p := &program{lanes: 32, image: code, insts: []inst{{run: func(*wave) {}, words: 1},
		{run: func(w *wave) { w.paused, w.ended = true, true }, words: 1}}}
	m.programs[wide(1, 2)^wide(4, 3)^32] = []*program{p}
	set(regCode, 1<<8)
	set(regRsrc1, floatMode<<12|5)
	set(regRsrc2, 2<<1|1<<7|1<<15)
	set(regThreads, 64|10<<16)
	set(regThreads+4, 1)
	set(regThreads+8, 1)
	set(regUser+4, 9)
	set(regStart, 2)
	l, err := q.launch([3]uint32{5, 1, 1}, waves32|partialGroups)
	require.NoError(t, err)
	assert.Equal(t, []uint32{0, 9}, l.user)
	assert.Equal(t, 512, l.shared)
	assert.Equal(t, 48, l.vectors)
	assert.Equal(t, [3]uint32{2, 0, 0}, l.first)
	assert.Equal(t, [3]uint32{10, 0, 0}, l.last)
	m.Count = true
	l.run()
	n := m.Counted()
	require.Len(t, n, 1)
	assert.Equal(t, []uint64{3, 5}, []uint64{n[0].Groups, n[0].Waves}, "two of 64 threads, one of 10")

	l, err = q.launch([3]uint32{130, 1, 1}, waves32|inThreads|startAtZero)
	require.NoError(t, err)
	assert.Equal(t, [][3]uint32{{3, 1, 1}, {2, 0, 0}, {}}, [][3]uint32{l.groups, l.last, l.first})

	set(regRsrc1, 0xf0<<12)
	_, err = q.launch([3]uint32{1, 1, 1}, waves32)
	assert.ErrorContains(t, err, "mode of floats 0xf0")
}

// TestIndirect reads the workgroups of a dispatch from memory, of a queue for compute only and of
// one that draws too.
func TestIndirect(t *testing.T) {
	m := &Machine{seen: map[Fault]bool{}, programs: map[uint64][]*program{}, gfx: 11, Count: true}
	m.queue = queue{m: m, regs: map[uint32]uint32{}}
	code := []uint32{1, 2, 3, 4}
	m.memory.put(span{1 << 16, 16, unsafe.Pointer(&code[0])})
	m.programs[wide(1, 2)^wide(4, 3)^32] = []*program{{number: 1, lanes: 32, image: code,
		insts: []inst{{run: func(w *wave) { w.paused, w.ended = true, true }, words: 1}}}}
	for at, x := range map[uint32]uint32{regCode: 1 << 8, regRsrc1: floatMode << 12, regThreads: 32, regThreads + 4: 1, regThreads + 8: 1} {
		m.queue.regs[(at-shRegs)/4] = x
	}
	groups := []uint32{9, 5, 2, 3, 9}
	m.memory.put(span{1 << 17, 20, unsafe.Pointer(&groups[0])})
	groupsOf := func(op uint32, data ...uint32) uint64 {
		require.True(t, m.queue.packet(op, data))
		n := m.Counted()
		if len(n) == 0 {
			return 0
		}
		return n[0].Groups
	}
	assert.Equal(t, uint64(30), groupsOf(pktDispatchIndirect, 1<<17+4, 0, waves32|startAtZero))
	assert.Zero(t, groupsOf(pktSetBase, 1, 1<<17, 0))
	assert.Equal(t, uint64(30), groupsOf(pktDispatchIndirect, 4, waves32|startAtZero))
	groups[2] = 0
	assert.Zero(t, groupsOf(pktDispatchIndirect, 4, waves32|startAtZero))
	assert.Empty(t, m.Faults())
	assert.Zero(t, groupsOf(pktDispatchIndirect, 64, waves32|startAtZero))
	faults := m.Faults()
	require.Len(t, faults, 1)
	assert.Equal(t, "rdna: arguments of an indirect dispatch outside all memory: 0x20040", faults[0].Error())
}

func TestMemory(t *testing.T) {
	var m memory
	x := make([]byte, 64)
	at := func(i int) unsafe.Pointer { return unsafe.Pointer(&x[i]) }
	m.put(span{300, 16, at(16)})
	m.put(span{100, 16, at(0)})
	assert.Equal(t, at(4), m.at(104, 12))
	assert.Equal(t, at(16), m.at(0xffff<<48|300, 16), "the highest bits repeat")
	for _, a := range []uint64{99, 105, 116, 200, 305, 1 << 40} {
		assert.Nil(t, m.at(a, 16-a%2*4), "%d", a)
	}
	m.put(span{100, 16, nil})
	assert.Nil(t, m.at(100, 1))
	assert.Len(t, m, 1)
}
