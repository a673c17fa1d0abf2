package rdna

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// opcodeCase is a line of testdata/opcodes.txt.
type opcodeCase struct {
	text, before, after string
	gfx, size           int
}

func opcodeCases(t *testing.T) (list []opcodeCase) {
	t.Helper()
	for line := range strings.Lines(opcodes) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		p := strings.Split(line, ";")
		require.Len(t, p, 3, "%s", line)
		head := unitHead.FindStringSubmatch(p[0])
		c := opcodeCase{head[3], p[1], p[2], 11, 32}
		if head[1] != "" {
			c.gfx = int(number(t, head[1]))
		}
		if head[2] != "" {
			c.size = 64
		}
		list = append(list, c)
	}
	return list
}

// TestOpcodes executes every line.
func TestOpcodes(t *testing.T) {
	for _, c := range opcodeCases(t) {
		t.Run(c.text, func(t *testing.T) {
			x := compile(c.gfx, c.size, c.text, 0)
			require.NotEqual(t, "unknown", x.op)
			w, mem := testWave(c.gfx, c.size)
			apply(t, w, mem, c.before, func(p *uint32, x uint32, _ string) { *p = x })
			x.run(w)
			apply(t, w, mem, c.after, func(p *uint32, x uint32, what string) {
				assert.Equal(t, fmt.Sprintf("%#x", x), fmt.Sprintf("%#x", *p), what)
			})
			assert.Empty(t, w.k.m.Faults())
		})
	}
}

// testWave is a wave with 1024 bytes of shared memory and as many of memory at 4096.
func testWave(gfx, size int) (*wave, []uint32) {
	m := &Machine{gfx: gfx, seen: map[Fault]bool{}}
	mem := make([]uint32, 256)
	m.memory.put(span{4096, 1024, unsafe.Pointer(&mem[0])})
	w := &wave{k: newWorker(m), size: size, prog: &program{insts: make([]inst, 1)}, view: view{all: m.memory}}
	w.all = ^uint64(0) >> (64 - size)
	w.setExec(w.all)
	w.k.shared.begin(1024)
	return w, mem
}

// apply calls f with each register that a list names, and its number there.
func apply(t *testing.T, w *wave, mem []uint32, list string, f func(p *uint32, x uint32, what string)) {
	t.Helper()
	for _, a := range strings.Fields(list) {
		name, value, ok := strings.Cut(a, "=")
		require.True(t, ok, a)
		switch name {
		case "exec", "vcc":
			x, err := strconv.ParseUint(value, 0, 64)
			require.NoError(t, err)
			r := map[string]int{"exec": exec, "vcc": vcc}[name]
			f(&w.s[r], uint32(x), a)
			if w.size == 64 {
				f(&w.s[r+1], uint32(x>>32), a)
			}
			continue
		case "scc":
			x := uint32(0)
			if w.scc {
				x = 1
			}
			f(&x, number(t, value), a)
			w.scc = x == 1
			continue
		}
		at, lane, one := strings.Cut(name[1:], ".")
		n, err := strconv.Atoi(at)
		require.NoError(t, err)
		x := number(t, value)
		switch name[0] {
		case 's':
			f(&w.s[n], x, a)
		case 'm':
			f(&mem[n/4], x, a)
		case 'l':
			f(&w.k.shared.words[n/4], x, a)
		case 'v':
			from, to := 0, w.size
			if one {
				from, err = strconv.Atoi(lane)
				require.NoError(t, err)
				to = from + 1
			}
			for i := from; i < to; i++ {
				f(&w.v[n][i], x, a)
			}
		default:
			require.Fail(t, a)
		}
	}
}

func number(t *testing.T, s string) uint32 {
	t.Helper()
	if s, ok := strings.CutSuffix(s, "h"); ok {
		x, err := strconv.ParseFloat(s, 64)
		require.NoError(t, err)
		return toHalf(x)
	}
	if d, ok := strings.CutSuffix(s, "f"); ok && !strings.HasPrefix(s, "0x") {
		x, err := strconv.ParseFloat(d, 32)
		require.NoError(t, err)
		return asBits(float32(x))
	}
	x, err := strconv.ParseInt(s, 0, 64)
	require.NoError(t, err)
	return uint32(x)
}

// What a wave executed and no line has is told, each of a pair by itself.
func TestUntested(t *testing.T) {
	m := &Machine{}
	k := newWorker(m)
	m.workers = []*worker{k}
	p := &program{insts: []inst{{op: "s_endpgm"}, {op: "v_dual_mov_b32 :: v_dual_frob_b32"}, {op: "s_frob_b32"}, {op: "s_frob_b64"}}}
	k.counts[p] = []uint64{1, 1, 2, 0}
	assert.Equal(t, []string{"s_frob_b32", "v_frob_b32"}, m.Untested())
}

// Every instruction of the tables has a line.
func TestOpcodesComplete(t *testing.T) {
	tested := tested()
	for _, op := range known() {
		assert.True(t, tested[op], op)
	}
}
