package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// layerCheck holds the operations of a layer against their references, one by one and
// at the sizes that are timed: what an operation gave for some tokens against what the
// reference makes of what the operation was given. Compressors are not among them; see
// checkCompressors.
type layerCheck struct {
	*layerRig
	w      *randomLayer
	tokens []int
	got    pipeline.LayerTensors
	picks  tensor.Tensor
	res    verify.Result
	err    error
}

const (
	checkTokens = 2  // of a step, first and last
	checkRows   = 24 // outputs of a linear layer
)

// check runs a layer and returns what came closest to its bound, or beyond it.
func (r *layerRig) check(w *randomLayer) (verify.Result, error) {
	c := &layerCheck{layerRig: r, w: w, tokens: some(checkTokens, r.shape.tokens()), got: r.kind.Tensors(), picks: r.kind.TopK()}
	c.err = run(r.ctx, r.dev, func(rec *vk.Recorder) error {
		err := rec.Fill(r.args.Out.View(), 0xffffffff)
		for _, t := range []tensor.Tensor{c.got.QKV, c.got.QR, c.got.Q, c.got.O, c.got.O8, c.got.Z, c.got.KVScore, c.got.IndexQ, c.picks, c.got.Compressed} {
			if !t.IsZero() {
				err = errors.Join(err, rec.Fill(t.View(), 0xffffffff))
			}
		}
		return errors.Join(err, r.kind.RecordStep(rec, r.step), r.record(rec, 0), c.normed(rec))
	})
	c.linears()
	c.norms()
	c.queries()
	for _, t := range c.tokens {
		c.stored(t)
		c.lists(t)
		c.attention(t)
	}
	if r.cfg.Ratio == pipeline.RatioC4A {
		c.selection(c.tokens[len(c.tokens)-1])
	}
	return c.res, c.err
}

// add keeps a result that is closer to its bound than all before, and every failure.
func (c *layerCheck) add(r verify.Result) {
	ratio := func(r verify.Result) float64 {
		if r.Error == 0 {
			return 0
		}
		return r.Error / r.Bound
	}
	switch {
	case c.res.Class == "":
		c.res = r
	case !r.Pass && !c.res.Pass:
		c.res.Detail += "; " + r.Detail
	case !r.Pass, c.res.Pass && ratio(r) > ratio(c.res):
		c.res = r
	}
}

// compare adds a comparison.
func (c *layerCheck) compare(f func(*verify.Comparison)) {
	if c.err == nil {
		x := verify.NewComparison(verify.ClassTolerance)
		f(x)
		c.add(x.Result())
	}
}

func part[T any](c *layerCheck, t tensor.Tensor, from, n int) []T {
	if c.err != nil {
		return make([]T, n)
	}
	t = tensor.Tensor{Buffer: t.Buffer, Offset: t.Offset + uint64(from*t.DType.Size()), DType: t.DType, Shape: []int{n}}
	v, err := fetch[T](c.ctx, t)
	if c.err = err; err != nil {
		return make([]T, n)
	}
	return v
}

// row is row i of a tensor along its first dimension.
func row[T any](c *layerCheck, t tensor.Tensor, i int) []T {
	n := t.Len() / t.Shape[0]
	return part[T](c, t, i*n, n)
}

func widened(v []uint16) []float64 {
	f := make([]float64, len(v))
	for i, b := range v {
		f[i] = float64(numfmt.BF16Decode(b))
	}
	return f
}

// weightRow is row n of a matrix as numbers, and the largest scale of a block of it.
func (c *layerCheck) weightRow(x model.DeviceMatrix, n int) (w []float64, scale float64) {
	rows, scales := c.weightRows(x, n, 1)
	return rows[0], scales[0]
}

// weightRows is weightRow of n rows from one on, which come from the device at once.
func (c *layerCheck) weightRows(x model.DeviceMatrix, from, n int) (w [][]float64, scale []float64) {
	rows := func(t tensor.Tensor, from, to int) func(i int) []byte {
		width := t.Len() / t.Shape[0] * t.DType.Size()
		b := part[byte](c, tensor.Tensor{Buffer: t.Buffer, Offset: t.Offset, DType: tensor.U8, Shape: []int{t.Shape[0] * width}}, from*width, (to-from)*width)
		return func(i int) []byte { return b[(i-from)*width:][:width] }
	}
	codes := rows(x.Data, from, from+n)
	scales := func(int) []byte { return nil }
	switch x.Format {
	case model.FormatBF16:
	case model.FormatFP8:
		blocks := rows(x.Scales, from/projection.ScaleBlock, (from+n-1)/projection.ScaleBlock+1)
		scales = func(i int) []byte { return blocks(i / projection.ScaleBlock) }
	default:
		scales = rows(x.Scales, from, from+n)
	}
	w, scale = make([][]float64, n), make([]float64, n)
	for i := range w {
		w[i], scale[i] = numbersOf(x, codes(from+i), scales(from+i))
	}
	return w, scale
}

// numbersOf is a row of a matrix as numbers, made of its codes and its scales, and the
// largest scale of a block.
func numbersOf(x model.DeviceMatrix, codes, scales []byte) (w []float64, scale float64) {
	w = make([]float64, x.K)
	switch x.Format {
	case model.FormatBF16:
		for k := range w {
			w[k] = float64(numfmt.BF16Decode(binary.LittleEndian.Uint16(codes[2*k:])))
		}
		return w, 0.5
	case model.FormatFP8:
		for k := range w {
			s := float64(numfmt.UE8M0Scale(scales[k/projection.ScaleBlock]))
			w[k], scale = s*float64(numfmt.E4M3Decode(codes[k])), max(scale, s)
		}
		return w, scale
	}
	for k := range w {
		even, odd := numfmt.E2M1Unpack(codes[k/2])
		code := even
		if k%2 == 1 {
			code = odd
		}
		w[k] = float64(numfmt.E2M1Decode(code)) * float64(numfmt.E4M3Decode(scales[k/16])) * float64(x.Global)
	}
	return w, 0.5
}

// linears checks outputs of every linear layer but wq_b, whose output is overwritten.
func (c *layerCheck) linears() {
	m := c.cfg.Model
	list := []struct {
		name   string
		x, y   tensor.Tensor
		w      model.DeviceMatrix
		groups int
	}{
		{"wq_a|wkv", c.args.Hidden, c.got.QKV, c.w.QKV, 1},
		{"wo_a", c.got.O, c.got.Z, c.w.OA, m.Groups},
		{"wo_b", c.got.Z, c.args.Out, c.w.OB, 1},
	}
	if c.cfg.Output != pipeline.OutputBF16 {
		list = append(list[:1], list[2]) // wo_a's inputs are codes: its operation is checked elsewhere
	}
	if x := c.w.Compressor; x != nil {
		list = append(list, struct {
			name   string
			x, y   tensor.Tensor
			w      model.DeviceMatrix
			groups int
		}{"compressor.wkv|wgate", c.args.Hidden, c.got.KVScore, x.KVGate, 1})
	}
	if x := c.w.Indexer; x != nil {
		for _, l := range []struct {
			name string
			x, y tensor.Tensor
			w    model.DeviceMatrix
		}{
			{"indexer.wq_b", c.got.QR, c.got.IndexQ, x.QB}, {"indexer.weights_proj", c.args.Hidden, c.got.IndexWeights, x.Weights},
			{"indexer.compressor.wkv|wgate", c.args.Hidden, c.got.IndexKVScore, x.Compressor.KVGate},
		} {
			list = append(list, struct {
				name   string
				x, y   tensor.Tensor
				w      model.DeviceMatrix
				groups int
			}{l.name, l.x, l.y, l.w, 1})
		}
	}
	for _, l := range list {
		c.linear(l.name, l.x, l.y, l.w, l.groups)
	}
}

// linear holds some outputs against sums in float64. The bound is that of verify's op
// linear: 2^-23 of the terms for each of them, what tiny numbers lose in f16, and the
// rounding of the result.
func (c *layerCheck) linear(name string, x, y tensor.Tensor, w model.DeviceMatrix, groups int) {
	worst := verify.Result{Class: verify.ClassTolerance, Pass: true, Bound: 1, Detail: name + ": equal"}
	ins, outs := make([][]float64, len(c.tokens)), make([][]float64, len(c.tokens))
	for i, t := range c.tokens {
		ins[i] = widened(row[uint16](c, x, t))
		if y.DType == tensor.F32 {
			for _, v := range row[float32](c, y, t) {
				outs[i] = append(outs[i], float64(v))
			}
		} else {
			outs[i] = widened(row[uint16](c, y, t))
		}
	}
	for _, n := range some(checkRows, w.N) {
		weights, scale := c.weightRow(w, n)
		for i, t := range c.tokens {
			in, got := ins[i][n/(w.N/groups)*w.K:][:w.K], outs[i][n]
			var sum, terms, wSum, xSum float64
			for k, v := range weights {
				p := v * in[k]
				sum, terms, wSum, xSum = sum+p, terms+math.Abs(p), wSum+math.Abs(v), xSum+math.Abs(in[k])
			}
			bound := float64(w.K)*0x1p-23*terms + 0x1p-25*(wSum+2*scale*xSum)
			if y.DType != tensor.F32 {
				bound += math.Abs(sum) * 0x1p-8
			}
			if e := math.Abs(got - sum); !(e <= bound) || e/bound > worst.Error/worst.Bound {
				worst.Error, worst.Bound, worst.Pass = e, bound, e <= bound
				worst.Detail = fmt.Sprintf("%s: output %d of token %d is %g, want %g within %.3g", name, n, t, got, sum, bound)
			}
			if !worst.Pass {
				break
			}
		}
		if !worst.Pass || c.err != nil {
			break
		}
	}
	if math.IsNaN(worst.Error) {
		worst.Error = math.Inf(1)
	}
	if c.err == nil {
		c.add(worst)
	}
}

// normed records the norms of a layer whose operations do them inside: they give the same
// bits, which are what those operations are checked with.
func (c *layerCheck) normed(rec *vk.Recorder) error {
	if !c.got.KV.IsZero() {
		return nil
	}
	rank, t := c.cfg.Model.QRank, c.shape.tokens()
	op, err := projection.NewQKVNorm(c.dev, projection.QKVNormConfig{Rank: rank, Eps: c.cfg.Model.Eps})
	qr := c.out(tensor.BF16, t, rank)
	c.got.KV = c.out(tensor.BF16, t, projection.D)
	if c.got.QR.IsZero() {
		c.got.QR = qr
	}
	if err = errors.Join(err, c.layerRig.err); err != nil {
		return err
	}
	return op.Record(rec, projection.QKVNormArgs{QR: c.got.QKV, KV: c.got.QKV, KVAt: rank, QRWeight: c.w.QNorm, KVWeight: c.w.KVNorm,
		QROut: qr, KVOut: c.got.KV})
}

// norms checks both norms of some tokens.
func (c *layerCheck) norms() {
	m := c.cfg.Model
	qWeight, kvWeight := part[float32](c, c.w.QNorm, 0, m.QRank), part[float32](c, c.w.KVNorm, 0, 512)
	for _, t := range c.tokens {
		in := row[uint16](c, c.got.QKV, t)
		for _, x := range []struct {
			name string
			in   []uint16
			w    []float32
			got  tensor.Tensor
		}{{"q norm", in[:m.QRank], qWeight, c.got.QR}, {"kv norm", in[m.QRank:], kvWeight, c.got.KV}} {
			want, got := make([]uint16, len(x.w)), row[uint16](c, x.got, t)
			c.keep(projection.QKVNormRef(x.in, x.w, m.Eps, want))
			c.compare(func(v *verify.Comparison) {
				v.BF16Steps(x.name, vectors.FromU16(got, len(got)), vectors.FromU16(want, len(want)), 1)
			})
		}
	}
}

func (c *layerCheck) keep(err error) {
	if c.err == nil {
		c.err = err
	}
}

// finished is what the attention multiplies of a token, [H, 512]: queries, normed and turned.
func (c *layerCheck) finished(t int) []uint16 {
	q := row[uint16](c, c.got.Q, t)
	if !c.got.QRaw || c.err != nil {
		return q
	}
	layout, err := cache.NewLayout(1, 0)
	c.keep(err)
	q = slices.Clone(q)
	c.keep(projection.QInsertRef(q, c.cfg.Model.Heads, make([]uint16, 512), []int64{-1}, []int32{0}, c.host.cosSin(c.host.positions[t]), c.cfg.Model.Eps, nil, layout))
	return q
}

// queries checks wq_b with the norm and the rotation of two heads of some tokens, at once:
// what comes between them is overwritten. A number may be rounded to bf16 twice, and a
// rotated one is a sum of two such.
func (c *layerCheck) queries() {
	m := c.cfg.Model
	layout, err := cache.NewLayout(1, 0)
	c.keep(err)
	for _, h := range some(2, m.Heads) {
		weights, _ := c.weightRows(c.w.QB, h*512, 512)
		for _, t := range c.tokens {
			in, q := widened(row[uint16](c, c.got.QR, t)), c.finished(t)
			want := make([]uint16, 512)
			for i, w := range weights {
				sum := 0.0
				for k, v := range w {
					sum += v * in[k]
				}
				want[i] = numfmt.BF16Encode(float32(sum))
			}
			c.keep(projection.QInsertRef(want, 1, make([]uint16, 512), []int64{-1}, []int32{0}, c.host.cosSin(c.host.positions[t]), m.Eps, nil, layout))
			c.compare(func(v *verify.Comparison) {
				v.Close(fmt.Sprintf("q of head %d, token %d", h, t), vectors.FromU16(q[h*512:][:512], 512), vectors.FromU16(want, 512),
					verify.Tolerance{Abs: 0x1p-5, Rel: 0x1p-6, Cos: 2e-5})
			})
		}
	}
}

// table is a cache's block table.
func (c *layerCheck) table(label string, pageSlots int) attention.Table {
	rows, w := c.host.tables[label], c.host.widths[label]
	return attention.Table{Blocks: rows, R: len(rows) / w, W: w, Page: pageSlots}
}

// stored checks a token's row of the window cache: the codes of its 448 numbers and
// their scales to the bit, the rotated ones within a rounding.
func (c *layerCheck) stored(t int) {
	kv := row[uint16](c, c.got.KV, t)
	one := cache.Layout{Page: 1, Stride: cache.SlotBytes}
	want := make([]byte, cache.SlotBytes)
	c.keep(projection.QInsertRef(nil, 0, kv, []int64{0}, []int32{0}, c.host.cosSin(c.host.positions[t]), 0, want, one))
	slot := c.table("window cache", page).Slot(c.host.toReq[t], int(c.host.positions[t]))
	got := c.rows(c.cfg.Caches.Window, []int32{slot})
	c.compare(func(v *verify.Comparison) {
		exact := func(b []byte) vectors.Array {
			b = append(append([]byte(nil), b[:448]...), b[cache.RowBytes:][:7]...)
			return vectors.FromU8(b, len(b))
		}
		v.Exact(fmt.Sprintf("stored codes of token %d", t), exact(got), exact(want))
		v.Close(fmt.Sprintf("stored rotated numbers of token %d", t), rotated(got), rotated(want), verify.Tolerance{Abs: 0x1p-9, Rel: 0x1p-6})
	})
}

// rotated are the last 64 numbers of a stored row.
func rotated(b []byte) vectors.Array {
	v := make([]uint16, 64)
	for i := range v {
		v[i] = uint16(b[448+2*i]) | uint16(b[449+2*i])<<8
	}
	return vectors.FromU16(v, len(v))
}

// rows brings slots of a cache to the host, packed with 584 bytes each.
func (c *layerCheck) rows(k cache.KVCache, slots []int32) []byte {
	wide := make([]int64, len(slots))
	for i, s := range slots {
		wide[i] = int64(s)
	}
	if c.err != nil {
		return make([]byte, len(slots)*cache.SlotBytes)
	}
	data, err := c.slotRows(k, wide)
	c.keep(err)
	return data
}

// collect brings bytes that f copies together to the host.
func (c *layerCheck) collect(n int, f func(rec *vk.Recorder, to vk.View) error) []byte {
	data := make([]byte, n)
	if c.err != nil || n == 0 {
		return data
	}
	t, err := tensor.New(c.dev, "bench check", tensor.U8, n)
	if err != nil {
		c.err = err
		return data
	}
	defer t.Close()
	if c.err = run(c.ctx, c.dev, func(rec *vk.Recorder) error { return f(rec, t.View()) }); c.err == nil {
		c.err = t.Download(c.ctx, data)
	}
	return data
}
