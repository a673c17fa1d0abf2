package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/vk"
)

// lists checks the slots that a token attends: of its window, and of the compressed
// entries that it sees or that were picked.
func (c *layerCheck) lists(t int) {
	r, p := c.host.toReq[t], int(c.host.positions[t])
	var window, entries []int32
	for at := max(0, p+1-c.cfg.Model.Window); at <= p; at++ {
		window = append(window, c.table("window cache", page).Slot(r, at))
	}
	c.list(fmt.Sprintf("window slots of token %d", t), window, row[int32](c, c.got.Window, t), part[int32](c, c.got.WindowLens, t, 1)[0])
	switch c.cfg.Ratio {
	case pipeline.RatioWindow:
		return
	case pipeline.RatioC4A:
		for _, e := range row[int32](c, c.picks, t) {
			if e >= 0 {
				entries = append(entries, c.table("compressed cache", page).Slot(r, int(e)))
			}
		}
	default:
		for e := range (p + 1) / pipeline.RatioC128A {
			entries = append(entries, c.table("compressed cache", c128Page).Slot(r, e))
		}
	}
	c.list(fmt.Sprintf("compressed slots of token %d", t), entries, row[int32](c, c.got.Compressed, t), part[int32](c, c.got.CompressedLens, t, 1)[0])
}

// list holds a list against what it has to be.
func (c *layerCheck) list(name string, want, got []int32, n int32) {
	if c.err == nil {
		got = got[:min(max(int(n), 0), len(got))]
		c.compare(func(v *verify.Comparison) {
			v.Exact(name, vectors.FromI32(got, len(got)), vectors.FromI32(want, len(want)))
		})
	}
}

// attention checks what all heads of a token take from the rows of its lists, and that
// it was turned back, or quantised.
func (c *layerCheck) attention(t int) {
	take := func(k cache.KVCache, list, lens []int32) *attention.Slots {
		list = list[:min(max(int(lens[0]), 0), len(list))]
		n := len(list)
		own := make([]int32, n)
		for i := range own {
			own[i] = int32(i)
		}
		return &attention.Slots{Pool: c.rows(k, list), Layout: cache.Layout{Page: 1, Stride: cache.SlotBytes}, Indices: own, Width: n, Lens: []int32{int32(n)}}
	}
	window := take(c.cfg.Caches.Window, row[int32](c, c.got.Window, t), part[int32](c, c.got.WindowLens, t, 1))
	var entries *attention.Slots
	if c.cfg.Ratio != pipeline.RatioWindow {
		entries = take(c.cfg.Caches.Compressed, row[int32](c, c.got.Compressed, t), part[int32](c, c.got.CompressedLens, t, 1))
	}
	heads := some(16, c.cfg.Model.Heads)
	q, o, sinks := c.finished(t), row[uint16](c, c.got.O, t), part[float32](c, c.w.Sink, 0, c.cfg.Model.Heads)
	var someQ, someO []uint16
	var someSinks []float32
	for _, h := range heads {
		someQ, someO, someSinks = append(someQ, q[h*512:][:512]...), append(someO, o[h*512:][:512]...), append(someSinks, sinks[h])
	}
	if c.err != nil {
		return
	}
	out, _, err := attention.DecodeRef(someQ, len(heads), window, entries, someSinks, attention.DefaultScale)
	c.keep(err)
	cosSin := c.host.cosSin(c.host.positions[t])
	spread := sync.OnceValues(func() ([]float32, error) {
		return attention.DecodeSpreadRef(someQ, len(heads), window, entries, someSinks, attention.DefaultScale)
	})
	sides := 0
	if attend, _ := c.kind.Variants(); verify.RoundsWeights(attend) {
		sides = 1
	}
	plain := 512 // of a head, the numbers that were not turned back
	if c.cfg.Output == pipeline.OutputBF16 {
		plain = projection.NopeDim
		c.turned(fmt.Sprintf("attention of token %d, turned back", t), someO, out, cosSin, sides, spread)
	} else {
		c.quantised(t, o, cosSin)
	}
	cut := func(v []float32) []float32 {
		var part []float32
		for h := range heads {
			part = append(part, v[h*512:][:plain]...)
		}
		return part
	}
	got := cut(numfmt.BF16DecodeSlice(nil, someO))
	c.compare(func(v *verify.Comparison) {
		v.CloseWeighted(fmt.Sprintf("attention of token %d", t), vectors.FromBF16(got, len(heads), plain), vectors.FromBF16(cut(out), len(heads), plain),
			verify.DecodeOut, sides, func() ([]float32, error) {
				x, err := spread()
				return cut(x), err
			})
	})
}

// turned checks the numbers of heads that were turned back. A turned number is made of
// two, of which each may be as wrong as DecodeOut lets it be, and is rounded twice: the
// bound is that of a number as large as both together. Where a kernel rounds weights,
// each of the two may be wrong by 2^-8 of its spread, too.
func (c *layerCheck) turned(name string, got []uint16, out, cosSin []float32, sides int, spread func() ([]float32, error)) {
	worst := verify.Result{Class: verify.ClassTolerance, Pass: true, Bound: verify.DecodeOut.Abs, Detail: name + ": equal"}
	for at := 0; at < len(out); at += 512 {
		for i := range projection.RopeDim / 2 {
			k := at + projection.NopeDim + 2*i
			cos, sin := float64(cosSin[i]), float64(cosSin[projection.RopeDim/2+i])
			e, o := float64(out[k]), float64(out[k+1])
			bound := max(math.Sqrt2*verify.DecodeOut.Abs, (verify.DecodeOut.Rel+0x1p-8)*math.Hypot(e, o))
			for j, want := range []float64{e*cos + o*sin, o*cos - e*sin} {
				v := float64(numfmt.BF16Decode(got[k+j]))
				err, limit := math.Abs(v-want), bound
				if !(err <= limit) && sides > 0 {
					x, fail := spread()
					if c.keep(fail); fail != nil {
						return
					}
					limit += 0x1p-8 * math.Hypot(float64(x[k]), float64(x[k+1]))
				}
				if err <= limit && err/limit <= worst.Error/worst.Bound {
					continue
				}
				if worst.Pass {
					worst.Error, worst.Bound, worst.Pass = err, limit, err <= limit
					worst.Detail = fmt.Sprintf("%s: number %d of head %d is %g, want %g within %.3g", name, (k+j)%512, at/512, v, want, limit)
				}
			}
		}
	}
	if math.IsNaN(worst.Error) {
		worst.Error = math.Inf(1)
	}
	if c.err == nil {
		c.add(worst)
	}
}

// quantised checks the codes of a token's output. Those of blocks that hold turned
// numbers may be one code off where rounding is undecided.
func (c *layerCheck) quantised(t int, o []uint16, cosSin []float32) {
	m, n := c.cfg.Model, c.shape.tokens()
	p := m.HeadsPerGroup()
	codes, scales := make([]byte, len(o)), make([]byte, m.Heads*projection.HeadBlocks)
	c.keep(projection.InverseRopeQuantRef(o, m.Groups, p, []int32{0}, cosSin, codes, scales))
	for g := range m.Groups {
		got := part[byte](c, c.got.O8, (g*n+t)*p*512, p*512)
		c.compare(func(v *verify.Comparison) {
			for h := range p {
				plain := func(b []byte) vectors.Array { return vectors.FromU8(b[h*512:][:384], 384) }
				v.Exact(fmt.Sprintf("codes of group %d, head %d, token %d", g, h, t), plain(got), plain(codes[g*p*512:]))
			}
		})
	}
}

// selection checks what the indexer picked for a token: against the reference's scores
// of all entries, of the codes that the device quantised, or of the reference's where
// they stay in the kernel of the scores.
func (c *layerCheck) selection(t int) {
	keys, label := c.cfg.Caches.Keys, "indexer keys"
	r, n := c.host.toReq[t], int(c.host.positions[t]+1)/pipeline.RatioC4A
	if n == 0 {
		return
	}
	pages := (n + page - 1) / page
	table := c.table(label, page)
	stride := uint64(keys.Layout.Stride)
	pool := c.collect(pages*keys.Layout.Stride, func(rec *vk.Recorder, to vk.View) error {
		from := keys.Pool.View()
		for j := range pages {
			id := uint64(table.Blocks[int(r)*table.W+j])
			if err := rec.Copy(to.Buffer.View(to.Offset+uint64(j)*stride, stride), from.Buffer.View(from.Offset+id*stride, stride)); err != nil {
				return err
			}
		}
		return nil
	})
	own := make([]int32, pages)
	for i := range own {
		own[i] = int32(i)
	}
	x := indexer.LogitsHost{Heads: c.cfg.Model.IndexHeads,
		Pool: pool, Layout: keys.Layout, BlockTable: own, TableWidth: pages, TokenToReq: []int32{0}, Lens: []int32{int32(n)}}
	x.Q, x.QScale, x.Weights = c.indexQuery(t)
	picks := row[int32](c, c.picks, t)
	if c.err != nil {
		return
	}
	logits := make([]float32, n)
	c.keep(scoreAll(x, logits))
	c.compare(func(v *verify.Comparison) {
		v.TopK(fmt.Sprintf("picks of token %d", t), vectors.FromF32(logits, 1, n), []int32{int32(n)}, vectors.FromI32(picks, 1, len(picks)))
	})
}

// indexQuery is the indexer's query of a token, quantised, with the weights of its heads.
func (c *layerCheck) indexQuery(t int) (codes, scales []byte, weights []float32) {
	if !c.got.Codes.IsZero() {
		if !c.got.Scales.IsZero() {
			scales = row[byte](c, c.got.Scales, t)
		}
		return row[byte](c, c.got.Codes, t), scales, row[float32](c, c.got.Folded, t)
	}
	heads, format := c.cfg.Model.IndexHeads, c.cfg.Caches.Keys.Layout.Format
	codes, weights = make([]byte, heads*format.RowBytes()), make([]float32, heads)
	if format == cache.IndexKeyMXFP4 {
		scales = make([]byte, heads*cache.IndexScaleBytes)
	}
	c.keep(indexer.QueryQuantRef(row[uint16](c, c.got.IndexQ, t), heads, []int32{0}, row[uint16](c, c.got.IndexWeights, t),
		c.host.cosSin(c.host.positions[t]), indexer.QueryQuantConfig{Format: format}, codes, scales, weights))
	return codes, scales, weights
}

// scoreAll is LogitsRef by all processors.
func scoreAll(x indexer.LogitsHost, logits []float32) error {
	workers := runtime.GOMAXPROCS(0)
	each := (len(logits) + workers - 1) / workers
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		first := i * each
		if first >= len(logits) {
			break
		}
		wg.Go(func() {
			x := x
			x.First, x.Width = first, min(each, len(logits)-first)
			errs[i] = indexer.LogitsRef(x, logits[first:][:x.Width])
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkCompressors runs verify's random cases of the operations that layerCheck leaves
// out, in the variants that the device has.
func checkCompressors(ctx context.Context, dev *vk.Device, seed uint64, p Progress) (failed string, err error) {
	p.Step("checking compressors")
	_, err = verify.Run(ctx, dev, verify.Options{Ops: []string{"compressor_main_kv", "compressor_indexer_k_fp8"}, Seed: seed,
		Progress: func(done, total int, _, _ string) { p.Advance(int64(done), int64(total)) }}, func(r verify.Row) {
		if r.Status == verify.Fail || r.Status == verify.Missing {
			failed = fmt.Sprintf("%s %s, variant %s: %s", r.Op, r.Case, r.Variant, r.Detail)
		}
	})
	return failed, err
}
