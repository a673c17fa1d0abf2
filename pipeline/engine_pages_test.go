package pipeline_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/tensor"
)

// oddPages divide nothing, but those of keys: kernels of matrices take pages of multiples of 16.
var oddPages = map[string]int{"window": 23, "c4a": 48, "c4a.state": 3, "c128a": 1, "c128a.state": 50}

// vllmPage is a page of vLLM written down from its definition, not from package cache: the parts of
// a slot, in bytes, lie apart, each for all slots, and a page is a multiple of 576 bytes.
type vllmPage struct {
	slots, stride int
	parts         []int
}

var (
	vllmWindow   = vllmPage{64, 37440, []int{576, 8}}
	vllmKeys     = vllmPage{64, 8640, []int{128, 4}}
	vllmState    = vllmPage{4, 32832, []int{8192}}
	vllmKeyState = vllmPage{4, 8640, []int{2048}}
	vllmState128 = vllmPage{8, 32832, []int{4096}}
)

// slot is the bytes of a slot: those of its parts, one after the other.
func (p vllmPage) slot(pages []byte, slot int) (all []byte) {
	at := slot / p.slots * p.stride
	for _, n := range p.parts {
		all = append(all, pages[at+slot%p.slots*n:][:n]...)
		at += p.slots * n
	}
	return all
}

// recorded is a golden case.
func recorded(t *testing.T, op, name string) vectors.Case {
	t.Helper()
	set := must[*vectors.Set](t)(vectors.Open(filepath.Join(testkit.Root(t), "testdata", "golden")))
	return must[vectors.Case](t)(set.Case(op, name))
}

// put replaces a tensor of a model.
func put(t *testing.T, m *fakemodel.Model, name string, data []byte) {
	t.Helper()
	x := m.Find(name)
	require.NotNil(t, x, name)
	require.Len(t, data, len(x.Data), name)
	x.Data = data
}

func putF32(t *testing.T, m *fakemodel.Model, name string, values []float32) {
	t.Helper()
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	put(t, m, name, data)
}

// tokenParts is the number of inputs that are 1 for a token of a recorded step: their weights are
// what a number is the sum of, since weights are bf16 and the number is f32.
const tokenParts = 3

// putRows makes a compressor's products give recorded rows, [T, 2*channels], for tokens whose
// inputs are those of recordedInputs: exactly, in whatever order they add up.
func putRows(t *testing.T, m *fakemodel.Model, stem string, rows []float32, tokens, hidden int) {
	t.Helper()
	channels := len(rows) / tokens / 2
	for half, name := range []string{".wkv.weight", ".wgate.weight"} {
		w := make([]uint16, channels*hidden)
		for token := range tokens {
			for c := range channels {
				rest := rows[(2*token+half)*channels+c]
				for part := range tokenParts {
					bits := uint16(math.Float32bits(rest) >> 16) // cut off, so that no sum of parts is larger
					w[c*hidden+tokenParts*token+part] = bits
					rest -= numfmt.BF16Decode(bits)
				}
				require.Zero(t, rest)
			}
		}
		var data []byte
		for _, x := range w {
			data = binary.LittleEndian.AppendUint16(data, x)
		}
		put(t, m, stem+name, data)
	}
}

func recordedInputs(tokens, hidden int) []float32 {
	x := make([]float32, tokens*hidden)
	for token := range tokens {
		for part := range tokenParts {
			x[token*hidden+tokenParts*token+part] = 1
		}
	}
	return x
}

// putCompressor gives a compressor the weights that make a step what a golden case recorded.
func putCompressor(t *testing.T, m *fakemodel.Model, stem string, c vectors.Case, hidden int) {
	t.Helper()
	rows := c.In["kv_score"]
	putRows(t, m, stem, rows.F32(), rows.Dim(0), hidden)
	putF32(t, m, stem+".ape", c.In["ape"].F32())
	put(t, m, stem+".norm.weight", c.In["norm_weight"].Data)
}

// vllmEngine is an engine with vLLM's sizes of pages, of a model whose layers turn by the recorded
// angles.
func vllmEngine(t *testing.T, c model.Config, m *fakemodel.Model, tokens, sessions int) *pipeline.Engine {
	t.Helper()
	dev := testkit.Device(t)
	_, layers := opened(t, dev, m, model.CheckpointOptions{Config: &c})
	return engine(t, dev, fakemodel.Paged(c, fakemodel.VLLMPages()), layers,
		pipeline.EngineOptions{MaxTokens: tokens, MaxSessions: sessions, MaxStep: 32, Rewind: tokens})
}

// slotsOf returns a function that finds the bytes of a session's slots in a cache, in a pool of its
// tables.
func (p vllmPage) slotsOf(t *testing.T, s *pipeline.Session, pool int, cache tensor.Tensor) func(slot int) []byte {
	t.Helper()
	require.Equal(t, p.stride, cache.Shape[1], "bytes of a page")
	pages := testkit.Download[byte](t, cache)
	return func(slot int) []byte { return p.slot(pages, s.PageOf(pool, slot/p.slots)*p.slots+slot%p.slots) }
}

// Numbers of pools of an engine whose first layer has a compressor.
const (
	poolWindow = iota
	poolEntries
	poolStates
)

// TestEngineGoldenPages demands of an engine with vLLM's sizes of pages the bytes that vLLM's
// kernels put in theirs: states, entries and index keys of a C4A layer, whose compressors get what
// those kernels got, and rows of windows. Only the order of pages is each engine's own.
func TestEngineGoldenPages(t *testing.T) {
	testkit.WithoutMatrices(t)
	main, keys := recorded(t, "compressor_main_kv", "c4_prefill17"), recorded(t, "compressor_indexer_k_fp8", "prefill17")
	windows := recorded(t, "quantize_and_insert_k_cache", "t17_special")
	rows := windows.In["k"].U16()
	const d, tokens = 512, 17
	c := fakemodel.Config(append([]int{4}, make([]int, len(rows)/d)...)...)
	c.Compress = c.Main
	m := fake(t, fakemodel.Options{Config: c})
	putCompressor(t, m, "layers.0.attn.compressor", main, c.Hidden)
	putCompressor(t, m, "layers.0.attn.indexer.compressor", keys, c.Hidden)
	ones := make([]uint16, d*c.Hidden) // the first input, as each of the 512 numbers
	for i := range d {
		ones[i*c.Hidden] = numfmt.BF16Encode(1)
	}
	first := make([]float32, tokens*c.Hidden)
	for i := range tokens {
		first[i*c.Hidden] = 1
	}
	inputs := [][]float32{recordedInputs(tokens, c.Hidden)}
	for i := range c.Layers[1:] {
		stem := fmt.Sprintf("layers.%d.attn.", i+1)
		put(t, m, stem+"wkv.weight", vectors.FromU16(ones).Data)
		putF32(t, m, stem+"kv_norm.weight", numfmt.BF16DecodeSlice(nil, rows[i*d:][:d])) // of ones, so this is what it gives
		inputs = append(inputs, first)
	}
	e := vllmEngine(t, c, m, 64, 1)
	s := must[*pipeline.Session](t)(e.Open())
	must[[]pipeline.Appended](t)(s.Append(t.Context(), inputs))

	caches := e.Caches(0)
	for _, x := range []struct {
		what         string
		c            vectors.Case
		state, entry func(int) []byte
		page         vllmPage
	}{
		{"entries", main, vllmState.slotsOf(t, s, poolStates, caches.State.Pool),
			vllmWindow.slotsOf(t, s, poolEntries, caches.Compressed.Pool), vllmWindow},
		{"keys", keys, vllmKeyState.slotsOf(t, s, poolStates, caches.IndexState.Pool),
			vllmKeys.slotsOf(t, s, poolEntries, caches.Keys.Pool), vllmKeys},
	} {
		width := len(x.c.Want["state_rows"].Data) / tokens
		for i := range tokens {
			require.Equal(t, x.c.Want["state_rows"].Data[i*width:][:width], x.state(i), "%s: state of token %d", x.what, i)
		}
		n := 0
		for i, slot := range x.c.In["kv_slot_mapping"].I64() {
			if slot >= 0 {
				require.Equal(t, x.page.slot(x.c.Want["kv_cache_after"].Data, int(slot)), x.entry(n), "%s: %d, of token %d", x.what, n, i)
				n++
			}
		}
		require.Equal(t, tokens/4, n, x.what)
	}
	checked := 0
	for i, slot := range windows.In["slot_mapping"].I64() {
		if slices.ContainsFunc(rows[i*d:][:d], func(b uint16) bool { return b&0x7f80 == 0 && b != 0 }) {
			continue // -0 and subnormal numbers, which not every device multiplies by 1 without loss
		}
		want := vllmWindow.slot(windows.Want["cache_after"].Data, int(slot))
		got := vllmWindow.slotsOf(t, s, poolWindow, e.Caches(i+1).Window.Pool)
		require.Equal(t, want, got(0), "row %d, as the first token", i)
		for token := range tokens { // RoPE turns the last 64 numbers
			require.Equal(t, want[:448], got(token)[:448], "row %d, as token %d", i, token)
			require.Equal(t, want[576:], got(token)[576:], "scales of row %d, as token %d", i, token)
		}
		checked++
	}
	assert.GreaterOrEqual(t, checked, 12, "of 17 rows")
}

// TestEngineGoldenEntry is the same of an entry of 128 tokens in pages of two. The states of the
// other tokens are put in pages as a decode step of vLLM found them; another session, in the same
// step, completes no entry.
func TestEngineGoldenEntry(t *testing.T) {
	testkit.WithoutMatrices(t)
	g := recorded(t, "compressor_main_kv", "c128_decode")
	golden, page := vllmPage{2, 1168, []int{576, 8}}, vllmPage{2, 1728, []int{576, 8}}
	c := fakemodel.Config(128)
	c.Compress = c.Main
	m := fake(t, fakemodel.Options{Config: c})
	putCompressor(t, m, "layers.0.attn.compressor", g, c.Hidden)
	e := vllmEngine(t, c, m, 512, 2)
	var all []*pipeline.Session
	var chunks []pipeline.Chunk
	positions, width := g.In["positions"].I64(), g.In["state_block_table"].Dim(1)
	for r, p := range positions {
		s := must[*pipeline.Session](t)(e.Open())
		require.NoError(t, s.Advance(t.Context(), int(p)))
		states := e.Caches(0).State.Pool
		for at := p - 127; at < p; at++ {
			from := int(g.In["state_block_table"].I32()[r*width+int(at)/8])*8 + int(at)%8
			to := states.Rows(s.PageOf(poolStates, int(at)/8), s.PageOf(poolStates, int(at)/8)+1)
			row := to.View().Buffer.View(to.View().Offset+uint64(at%8)*4096, 4096)
			require.NoError(t, tensor.Of(row, tensor.U8, 4096).Upload(t.Context(), g.In["state_before"].Data[from*4096:][:4096]))
		}
		all, chunks = append(all, s), append(chunks, pipeline.Chunk{Session: s, Tokens: 1})
	}
	st := must[*pipeline.Step](t)(e.Begin(t.Context(), chunks...))
	inputs := recordedInputs(len(all), c.Hidden)
	for i := range all {
		require.NoError(t, st.SetInput(0, i, inputs[i*c.Hidden:][:c.Hidden]))
	}
	require.NoError(t, st.Run(t.Context()))
	require.NoError(t, st.Commit())
	for r, s := range all {
		p := int(positions[r])
		state := vllmState128.slotsOf(t, s, poolStates, e.Caches(0).State.Pool)(p)
		require.Equal(t, g.Want["state_rows"].Data[r*4096:][:4096], state, "state %d", r)
		if slot := int(g.In["kv_slot_mapping"].I64()[r]); slot >= 0 {
			require.Equal(t, golden.slot(g.Want["kv_cache_after"].Data, slot),
				page.slotsOf(t, s, poolEntries, e.Caches(0).Compressed.Pool)(p/128), "entry %d", r)
		}
	}
}
