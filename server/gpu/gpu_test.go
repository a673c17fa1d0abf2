package gpu

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/gguf"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/server/cpu"
	"github.com/vkmla/vkmla/server/weights"
	"github.com/vkmla/vkmla/vk"
)

var released = formats{routed: weights.MXFP4, shared: weights.FP8, gate: weights.BF16, ends: weights.BF16}

// TestCodes holds every code of E2M1 and E4M3 in the form that needs no subnormals of binary16; the
// other one is tried before it is used.
func TestCodes(t *testing.T) {
	dev := device(t)
	got, err := decoded(dev, mxfp4, false, []byte{0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, 0, 0, 0, 0, 0, 0, 0, 0})
	require.NoError(t, err)
	for i := range 16 {
		v := numfmt.E2M1Decode(byte(i))
		assert.Equal(t, math.Float32bits(v), math.Float32bits(got[i]), "E2M1 %#x", i)
	}
	got, err = decoded(dev, fp8, false, everyByte())
	require.NoError(t, err)
	for i, v := range got {
		if want := numfmt.E4M3Decode(byte(i)); want == want {
			assert.Equal(t, math.Float32bits(want), math.Float32bits(v), "E4M3 %#x", i)
		}
	}
	_, err = keepsHalves(dev)
	require.NoError(t, err)
}

// TestProduct compares all formats with the definition of their product, some tokens at a time.
// Each of them gets the bits that it gets alone.
func TestProduct(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(1, 2))
	const n, most = 67, 37
	var list []weights.Matrix
	for i, f := range []weights.Format{weights.MXFP4, weights.FP8, weights.BF16, weights.F32, weights.MXFP4} {
		list = append(list, matrixOf(rng, f, n, 1120+32*(i/4))) // the last is a multiple of 128: scales lie by words
	}
	for _, stored := range []string{"F16", "MXFP4", "Q5_0"} {
		list = append(list, blocksOf(rng, stored, n, 1120))
	}
	list = append(list, blocksOf(rng, "Q8_0", n, 32*131)) // more chunks than a team of one row has on the way
	for _, stored := range []string{"Q4_K", "Q2_K", "Q6_K", "IQ2_XXS", "Q3_K"} {
		list = append(list, blocksOf(rng, stored, n, 1280))
	}
	for i, w := range list {
		f, k := w.Format.String(), w.K
		if w.Stored != nil {
			f = w.Stored.Name
		}
		g, _ := opened(t, dev, small(rng, released, 2), Options{MaxStep: most})
		l := &loader{w: &weights.Model{}}
		var m matrix
		var y vk.View
		var x activations
		l.matrix(&m, &w)
		l.activations(&x, "x", most, k)
		l.scratch(&y, "y", most*n*4)
		require.NoError(t, l.check(dev))
		buffers, err := l.load(t.Context(), dev, nil)
		require.NoError(t, err)
		defer func() {
			for _, b := range buffers {
				b.Close()
			}
		}()
		in := normals(rng, most*k)
		var first []float32
		for _, c := range []struct{ tokens, tile, ofTeam int }{{most, 0, 2}, {1, 0, 2}, {1, 0, 1}, {2, 0, 2}, {9, 8, 2},
			{most, []int{16, 32, 8}[i%3], 2}} {
			upload(t, g, x.plain, placed(in[:c.tokens*k], k))
			step(t, g, make([]int32, c.tokens))
			poison(t, g, y, x.whole)
			r := rows{most: min(g.tiles.tokensOf(c.tokens), 4), turns: 1}
			if c.tile > 0 {
				r.most, r.tiles = c.tile, true
			}
			r.items = opkit.CeilDiv(c.tokens, r.most)
			run(t, g, func(rec *vk.Recorder) error {
				if err := g.whole(rec, c.tokens, x, reader{&m, r}); err != nil {
					return err
				}
				return g.product(rec, &m, c.ofTeam, r, x, y)
			})
			got := numbers(t, g, y)
			written := func(v float32) bool { return v == v }
			assert.False(t, slices.ContainsFunc(got[c.tokens*n:], written), "%v: rows that were not asked for", f)
			got = got[:c.tokens*n]
			if first == nil {
				first = got
				if m.format.whole() {
					in = wholes(in, k)
				}
				checkProduct(t, &w, in, got)
			}
			assert.Equal(t, first[:len(got)], got, "%v: %+v", f, c)
		}
	}
}

// TestWhole holds whole numbers and what goes with them to their definition: blocks of zeros, of
// subnormals, of the largest numbers, of one number, and of some that are not finite.
func TestWhole(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(17, 18))
	const rows, k = 3, 1120
	g, _ := opened(t, dev, small(rng, released, 2), Options{MaxStep: 4})
	x := normals(rng, rows*k)
	for row, list := range [][]float32{{0, 0x1p-133, 0x1p-126, 1, 0x1.FEp127}, {1, float32(math.Inf(1)), 0x1p100, float32(math.NaN()), 0x1p-100}} {
		for block, by := range list {
			for c := block * 256; c < min(block*256+256, k); c++ {
				switch v := &x[row*k+c]; {
				case math.IsInf(float64(by), 0) || by != by:
					if c%256 == 77 {
						*v = by
					}
				case by == 0x1.FEp127:
					*v = by * float32(1-c%3)
				default:
					*v = numfmt.BF16Round(*v * by)
				}
			}
		}
	}
	x[2*k+300] = 0x1p20 // beside it others are rounded to nothing
	var a activations
	l := &loader{w: &weights.Model{}}
	l.activations(&a, "x", rows, k)
	buffers, err := l.load(t.Context(), dev, nil)
	require.NoError(t, err)
	defer func() {
		for _, b := range buffers {
			b.Close()
		}
	}()
	upload(t, g, a.plain, placed(x, k))
	poison(t, g, a.whole)
	run(t, g, func(rec *vk.Recorder) error { return g.whole(rec, rows, a, reader{m: &matrix{format: q2K, k: k}}) })
	words := download(t, g, a.whole)
	const units = 2
	for row := range rows {
		of := words[row*wholeQuads(k)*4:]
		rounded, sum := wholes(x[row*k:][:k], k), int32(0)
		for c := range units * 1024 {
			piece, place := c/32, func(q int) int { return q&^127 | q&3<<5 | q>>2&31 }
			at := func(j int) int32 {
				return int32(int8(of[place(4*piece+j)*4+c%16/4] >> (c % 4 * 8)))
			}
			q := 128*at(c%32/16) + at(c%32/16+2)
			sum += q
			if c%16 == 15 {
				assert.Equal(t, sum, int32(of[units*128*4+c/16]), "row %d, sum of columns up to %d", row, c)
				sum = 0
			}
			scale := math.Float32frombits(of[units*144*4+c/256])
			switch {
			case c >= k:
				assert.Zero(t, q, "row %d, column %d", row, c)
			case slices.ContainsFunc(x[row*k+c&^255:][:min(256, k-c&^255)], func(v float32) bool { return v-v != 0 }):
				assert.True(t, scale != scale && q == 0, "row %d, column %d", row, c)
			default:
				if v := x[row*k+c]; q != 0 || max(v, -v) >= 0x1p-126 { // a device may take subnormals for zeros
					assert.Equal(t, rounded[c], float32(q)*scale, "row %d, column %d", row, c)
				}
				assert.LessOrEqual(t, max(q, -q), int32(1<<13))
			}
		}
	}
}

// wholes returns rows [T, k] as whole.comp rounds them: to 2^-13 of the smallest power of two that
// is not below any of 256 columns, 2^-113 at least.
func wholes(x []float32, k int) (rounded []float32) {
	for row := range slices.Chunk(x, k) {
		for block := range slices.Chunk(row, 256) {
			most := 0.0
			for _, v := range block {
				most = max(most, math.Abs(float64(v)))
			}
			_, e := math.Frexp(most) // most is up to 2^e
			if math.Exp2(float64(e-1)) == most {
				e--
			}
			unit := math.Exp2(float64(max(e, 14-127) - 13))
			for _, v := range block {
				rounded = append(rounded, float32(math.RoundToEven(float64(v)/unit)*unit))
			}
		}
	}
	return rounded
}

// checkProduct compares y [T, N] with the definition.
func checkProduct(t *testing.T, w *weights.Matrix, x, y []float32) {
	t.Helper()
	decoded := make([]float32, w.K)
	for n := range w.N {
		w.Row(decoded, n)
		for i := range len(y) / w.N {
			want, size := 0.0, 0.0
			for c, a := range decoded {
				p := float64(a) * float64(x[i*w.K+c])
				want, size = want+p, size+math.Abs(p)
			}
			require.InDelta(t, want, y[i*w.N+n], 1e-6*size, "%s: y[%d, %d]", w.Format, i, n)
		}
	}
}

// chooseRef is the choice as model.md has it.
func chooseRef(logits, bias []float32, row []int32, c *weights.Config) (chosen []int32, v []float32) {
	s := make([]float64, len(logits))
	for e, l := range logits {
		s[e] = math.Sqrt(max(float64(l), 0) + math.Log1p(math.Exp(-math.Abs(float64(l)))))
	}
	chosen = slices.Clone(row)
	for row == nil && len(chosen) < c.PerToken {
		best := int32(-1)
		for e := range s {
			if !slices.Contains(chosen, int32(e)) && (best < 0 || s[e]+float64(bias[e]) > s[best]+float64(bias[best])) {
				best = int32(e)
			}
		}
		chosen = append(chosen, best)
	}
	sum := 0.0
	for _, e := range chosen {
		sum += s[e]
	}
	for _, e := range chosen {
		v = append(v, float32(s[e]/sum*float64(c.Factor)))
	}
	return chosen, v
}

// TestRouter holds choice, weights and plan: ties, a bias that decides, gates far below 0, a table
// that names an expert twice, tokens without any expert in common.
func TestRouter(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(3, 4))
	w := small(rng, released, 2)
	for i := range w.Layers[1].Bias { // so that keys of equal logits are equal
		w.Layers[1].Bias[i] = float32(i/3) / 4
	}
	g, _ := opened(t, dev, w, Options{MaxStep: 7})
	c := &w.Config
	for layer := range w.Layers {
		for _, T := range []int{1, 7, 2} {
			ids, logits := tokenIDs(rng, T, c.Vocab), make([]float32, T*c.Experts)
			for i := range logits {
				logits[i] = float32(3 * rng.NormFloat64())
			}
			copy(logits, []float32{1, 1, 1, 1, 1})
			if T > 2 {
				copy(logits[5:], []float32{-40, -41, -42, -43, -44, 50, -1, 60, 0, 0})
			}
			bias := w.Layers[layer].Bias
			step(t, g, ids)
			upload(t, g, g.logits, bitsOf(logits))
			poison(t, g, g.chosen, g.v, g.plan)
			run(t, g, func(rec *vk.Recorder) error {
				if err := g.choose(rec, T, &g.layers[layer]); err != nil {
					return err
				}
				return g.group(rec, T, 2)
			})
			chosen, v, plan := download(t, g, g.chosen), numbers(t, g, g.v), download(t, g, g.plan)
			for i := range T {
				var row []int32
				if table := w.Layers[layer].Table; table != nil {
					row = table[int(ids[i])*c.PerToken:][:c.PerToken]
				}
				want, weights := chooseRef(logits[i*c.Experts:][:c.Experts], bias, row, c)
				for k := range want {
					assert.Equal(t, uint32(want[k]), chosen[i*c.PerToken+k], "layer %d, %d tokens, token %d", layer, T, i)
					assert.InDelta(t, weights[k], v[i*c.PerToken+k], 1e-5, "layer %d, %d tokens, token %d", layer, T, i)
				}
			}
			checkPlan(t, g, plan, chosen[:T*c.PerToken], T)
		}
	}
}

// checkPlan holds that each pair is in one item, of its expert, and items are full and in order.
func checkPlan(t *testing.T, g *GPU, plan, chosen []uint32, T int) {
	t.Helper()
	seen := make([]bool, len(chosen))
	if T == 1 { // a row is an item, and only its expert is told
		for i, e := range chosen {
			assert.Equal(t, e, plan[4+3*i])
		}
		return
	}
	for i := range plan[0] {
		expert, first, count := plan[4+3*i], plan[5+3*i], plan[6+3*i]
		require.LessOrEqual(t, count, uint32(2))
		for p := first; p < first+count; p++ {
			pair := plan[uint32(g.orderAt())+p]
			require.False(t, seen[pair])
			seen[pair] = true
			assert.Equal(t, expert, chosen[pair])
		}
		if i > 0 {
			assert.LessOrEqual(t, plan[4+3*(i-1)], expert)
		}
	}
	assert.NotContains(t, seen, false)
}

// outputs holds what the device computed of the experts of T tokens.
func outputs(t *testing.T, g *GPU, layer, T int, ids []int32, x []float32) []float32 {
	t.Helper()
	c := g.cfg
	step(t, g, ids)
	upload(t, g, g.x.plain, placed(x, c.Hidden))
	poison(t, g, g.routedY, g.sharedY, g.routedH.plain, g.sharedH.plain, g.x.whole, g.routedH.whole, g.sharedH.whole)
	run(t, g, func(rec *vk.Recorder) error { return g.experts(rec, T, &g.layers[layer]) })
	routed, shared := numbers(t, g, g.routedY), numbers(t, g, g.sharedY)
	f := make([]float32, len(ids)*c.Hidden)
	for i := range f {
		at, sum := i/c.Hidden, float32(0)
		for k := range c.PerToken {
			sum += routed[(at*c.PerToken+k)*c.Hidden+i%c.Hidden]
		}
		f[i] = numfmt.BF16Round(sum + shared[i])
	}
	return f
}

// TestExperts compares tokens with what the processor makes of them, in a padded step by tiles and
// without, and alone, with the same bits.
func TestExperts(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(5, 6))
	const padded = 16
	for i, f := range []formats{released,
		{routed: weights.FP8, shared: weights.FP8, gate: weights.F32, ends: weights.BF16},
		{routed: weights.BF16, shared: weights.BF16, gate: weights.BF16, ends: weights.F32},
		{ends: weights.BF16, stored: [3]string{"IQ2_XXS", "Q2_K", "Q8_0"}},
		{ends: weights.BF16, stored: [3]string{"Q4_K", "Q6_K", "F16"}},
		{ends: weights.BF16, stored: [3]string{"MXFP4", "Q5_K", "Q8_0"}}} {
		w := small(rng, f, 2)
		if f.routed == weights.BF16 { // w1 and w3 of two formats
			l := &w.Layers[1]
			l.Shared.W3 = matrixOf(rng, weights.F32, w.Config.Width, w.Config.Hidden)
			for e := range l.Experts {
				l.Experts[e].W3 = matrixOf(rng, weights.FP8, w.Config.Width, w.Config.Hidden)
			}
		}
		g, c := opened(t, dev, w, Options{MaxStep: padded})
		T := padded - 1
		ids, x := tokenIDs(rng, T, w.Config.Vocab), normals(rng, T*w.Config.Hidden)
		for layer := range w.Layers {
			want := make([]float32, len(x))
			c.Experts(layer, &cpu.Streams{T: T, IDs: ids}, x, want, nil)
			got := outputs(t, g, layer, padded, ids, x)
			assert.Less(t, off(got, want), 4e-3, "formats %d, layer %d", i, layer)
			g.tiles.tiles, g.tiles.routed = padded, 1
			assert.Equal(t, got, outputs(t, g, layer, padded, ids, x), "formats %d, layer %d: by tiles", i, layer)
			g.tiles = usual
			at, d := 2, w.Config.Hidden
			alone := outputs(t, g, layer, 1, ids[at:at+1], x[at*d:][:d])
			assert.Equal(t, got[at*d:][:d], alone, "formats %d, layer %d: alone", i, layer)
		}
	}
}

// TestLevels counts how often the experts of one token wait: after gate and whole numbers come the
// choice with the shared expert's first half, that of the routed ones, their whole numbers, both
// second halves.
func TestLevels(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(9, 1))
	w := small(rng, formats{ends: weights.BF16, stored: [3]string{"IQ2_XXS", "Q2_K", "Q8_0"}}, 2)
	w.Layers[0].Gate = matrixOf(rng, weights.BF16, w.Config.Experts, w.Config.Hidden)
	g, _ := opened(t, dev, w, Options{MaxStep: 4})
	run(t, g, func(rec *vk.Recorder) error {
		if err := g.experts(rec, 1, &g.layers[0]); err != nil {
			return err
		}
		assert.Equal(t, 4, rec.Barriers())
		return nil
	})
}

// TestStreams compares embedding, both halves of hyper-connections and the head with what the
// processor makes of them.
func TestStreams(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(7, 8))
	for _, streams := range []int{4, 2} {
		f := released
		if streams == 2 {
			f.ends = weights.F32
		}
		w := small(rng, f, streams)
		g, c := opened(t, dev, w, Options{MaxStep: 8})
		const T = 5
		d, s, ids := w.Config.Hidden, &cpu.Streams{}, tokenIDs(rng, T, w.Config.Vocab)
		step(t, g, ids)
		poison(t, g, g.streams, g.mix, g.parts, g.x.plain, g.headX.plain, g.headX.whole)
		c.Embed(s, ids)
		x, l := make([]float32, T*d), &w.Layers[1]
		c.Enter(s, &l.AttnHC, l.AttnNorm, x)
		run(t, g, func(rec *vk.Recorder) error {
			if err := g.leave(rec, 8, g.embedding(), &g.layers[1].attnHC); err != nil {
				return err
			}
			return g.enter(rec, 8, &g.layers[1].attnHC, g.layers[1].attnNorm, to{view: g.x.plain, quads: quads(d), placed: true})
		})
		assert.Less(t, off(unplaced(download(t, g, g.x.plain), d, T), x), 5e-3, "the first input")

		// What attention gives, then what experts give.
		out := normals(rng, T*d)
		packed := make([]uint32, 8*d/2)
		for i := range T * d / 2 {
			packed[i] = math.Float32bits(out[2*i])>>16 | math.Float32bits(out[2*i+1])&0xFFFF0000
		}
		upload(t, g, g.routedH.plain, packed)
		c.Leave(s, out)
		c.Enter(s, &l.FFNHC, l.FFNNorm, x)
		run(t, g, func(rec *vk.Recorder) error {
			if err := g.leave(rec, 8, source{fromAttention, g.routedH.plain}, &g.layers[1].ffnHC); err != nil {
				return err
			}
			return g.enter(rec, 8, &g.layers[1].ffnHC, g.layers[1].ffnNorm, to{view: g.x.plain, quads: d / 8})
		})
		var plain []float32
		for _, word := range download(t, g, g.x.plain)[:T*d/2] {
			plain = append(plain, math.Float32frombits(word<<16), math.Float32frombits(word&0xFFFF0000))
		}
		assert.Less(t, off(plain, x), 4e-3, "after attention")

		routed, shared := normals(rng, T*3*d), normals(rng, T*d)
		upload(t, g, g.routedY, bitsOf(routed))
		upload(t, g, g.sharedY, bitsOf(shared))
		for i := range out {
			sum := float32(0)
			for k := range 3 {
				sum += routed[(i/d*3+k)*d+i%d]
			}
			out[i] = numfmt.BF16Round(sum + shared[i])
		}
		c.Leave(s, out)
		want := make([]float32, T*w.Config.Vocab)
		c.Head(s, false, []int{0, 1, 2, 3, 4}, want)
		run(t, g, func(rec *vk.Recorder) error { return g.finish(rec, 8, source{kind: fromExperts}) })
		for i, row := range g.Logits(T) {
			assert.Less(t, off(row, want[i*w.Config.Vocab:][:w.Config.Vocab]), 8e-3, "logits of token %d", i)
		}
	}
}

// TestMemory holds that a model that does not fit, or whose kernels a device cannot run, says so
// before anything is uploaded.
func TestMemory(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(9, 10))
	_, err := New(t.Context(), dev, small(rng, released, 2), Options{MaxStep: 4, Reserve: 1 << 60})
	var lacks *MemoryError
	require.ErrorAs(t, err, &lacks)
	assert.Greater(t, lacks.Need, uint64(1<<60))
	assert.Less(t, lacks.Free, lacks.Need)
	assert.ErrorIs(t, err, vk.ErrOutOfDeviceMemory)
	assert.ErrorContains(t, err, "--experts cpu")
	assert.NotContains(t, dev.MemoryInUse(), "weights")

	has := dev.Caps().Features
	has["shaderIntegerDotProduct"] = false
	_, err = New(t.Context(), dev, small(rng, released, 2), Options{MaxStep: 4})
	has["shaderIntegerDotProduct"] = true
	assert.ErrorIs(t, err, vk.ErrMissingFeature)
	assert.ErrorContains(t, err, "shaderIntegerDotProduct, which --experts cpu does without")
	assert.NotContains(t, dev.MemoryInUse(), "weights")

	w := small(rng, released, 2)
	w.Config.Streams = 16
	_, err = New(t.Context(), dev, w, Options{MaxStep: 4})
	assert.ErrorIs(t, err, model.ErrConfig)
	w = small(rng, released, 2)
	w.Layers[1].Shared.W2.Data[5] = 0xFF
	_, err = New(t.Context(), dev, w, Options{MaxStep: 4})
	assert.ErrorIs(t, err, model.ErrCheckpoint, "a NaN")
	assert.Eventually(t, func() bool { return dev.MemoryInUse()["weights"] == 0 }, time.Minute, time.Millisecond,
		"what was on its way is waited for beside")
}

// TestMeasure holds that what is timed reads what it says.
func TestMeasure(t *testing.T) {
	dev, rng := device(t), rand.New(rand.NewPCG(11, 12))
	w := small(rng, released, 2)
	g, _ := opened(t, dev, w, Options{MaxStep: 4})
	r, err := g.Measure(t.Context(), 1)
	require.NoError(t, err)
	one := func(e *weights.Expert) int64 { return e.W1.Bytes() + e.W2.Bytes() + e.W3.Bytes() }
	l := &w.Layers[1]
	least := one(&l.Experts[0]) + one(&l.Shared) + l.Gate.Bytes()
	most := least + 2*one(&l.Experts[0])
	assert.InDelta(t, float64(least+most), r.Experts.Bytes, float64(most-least)+300, "rounded to whole pieces")
	assert.Positive(t, r.Experts.Seconds)
}

// TestUnpack compares blocks that go through several pieces of staging memory, the last one partly
// filled, with the same ones taken apart at once.
func TestUnpack(t *testing.T) {
	dev, ctx := device(t), t.Context()
	memory := func(size int) vk.View {
		b, err := dev.NewBuffer(vk.BufferSpec{Label: "blocks", Size: aligned(uint64(size), 16), Memory: vk.DeviceLocal})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, b.Close()) })
		return b.Whole()
	}
	for name, is := range blockLayouts {
		if is.scales == 0 {
			continue // nothing is taken apart
		}
		each := gguf.FormatNamed(name).Bytes
		n := 9<<20/each + 5
		data := make([]byte, n*each)
		_, _ = rand.NewChaCha8([32]byte{byte(is.format)}).Read(data)
		whole, codes, scales := memory(len(data)), [2]vk.View{}, [2]vk.View{}
		for i := range 2 {
			codes[i], scales[i] = memory(n*is.codes), memory(n*is.scales)
		}
		s := stored{is: is, bytes: each, blocks: n, from: bytes.NewReader(data), codes: &codes[0], scales: &scales[0]}
		require.NoError(t, s.upload(ctx, dev), name)
		require.NoError(t, dev.Upload(ctx, whole.Buffer.View(0, uint64(len(data))), data), name)
		require.NoError(t, dev.Run(ctx, func(rec *vk.Recorder) error {
			return unpack(rec, dev, is.format, each, n, whole, codes[1], scales[1])
		}), name)
		same := func(views [2]vk.View, size int) bool {
			var got [2][]byte
			for i, v := range views {
				got[i] = make([]byte, size)
				require.NoError(t, dev.Download(ctx, got[i], v.Buffer.View(0, uint64(size))), name)
			}
			return bytes.Equal(got[0], got[1])
		}
		assert.True(t, same(codes, n*is.codes), "%s: codes", name)
		assert.True(t, same(scales, n*is.scales), "%s: scales", name)
	}
}
