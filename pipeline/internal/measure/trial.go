package measure

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline/internal/memory"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// trial is the operation by which a family's builds are judged.
type trial struct {
	family   string // as tuning.Choice names it
	stem     string // of its kernels
	ladder   []tuning.Variant
	launches int // of a run; submitting takes longer than a short one
	inputs   func(dev *vk.Device, s sizes) (*inputs, error)
	record   func(dev *vk.Device, rec *vk.Recorder, in *inputs, build string) error
}

// page is the number of rows or keys in a page.
const page = 64

// trials are a product of bf16 weights as large as prompts make it, attention to gathered rows,
// that of one token to rows in pages, and the scores of several.
func trials() []trial {
	return []trial{
		{tuning.Products, "proj_linear", opkit.Builds("proj_linear"), 1, productInputs, recordProduct},
		{tuning.Prefill, "attn_prefill", opkit.Builds("attn_prefill"), 1, prefillInputs, recordPrefill},
		{tuning.Decode, "attn_decode", inPages(opkit.Decodes()), 4, decodeInputs, recordDecode},
		{tuning.Scores, "idx_logits", opkit.Builds("idx_logits"), 1, scoreInputs, recordScores},
	}
}

// inPages leaves out the builds of decode that run prefill's kernel.
func inPages(ladder []tuning.Variant) []tuning.Variant {
	return slices.DeleteFunc(slices.Clone(ladder), func(v tuning.Variant) bool { return strings.HasPrefix(v.Name, opkit.TwoPass) })
}

// inputs are the tensors of a trial.
type inputs struct {
	arena    *tensor.Arena
	x, y     tensor.Tensor // activations or queries; weights, rows or keys
	heads    tensor.Tensor // weights of heads
	indices  tensor.Tensor // of rows or pages
	lens     tensor.Tensor // how many of them count
	requests tensor.Tensor // of tokens
	scratch  tensor.Tensor
	out      tensor.Tensor

	list memory.List
	rng  *rand.Rand
	err  error // the first one
}

func (in *inputs) close() { _ = in.arena.Close() }

func productInputs(dev *vk.Device, s sizes) (*inputs, error) {
	in := &inputs{}
	in.list.Add(&in.x, tensor.BF16, s.tokens, s.rows)
	in.list.Add(&in.y, tensor.BF16, s.rows, s.rows)
	in.list.Add(&in.out, tensor.BF16, s.tokens, s.rows)
	return in.filled(dev, func() {
		in.put(in.x, in.normal(in.x.Len()))
		in.put(in.y, in.normal(in.y.Len()))
	})
}

func recordProduct(dev *vk.Device, rec *vk.Recorder, in *inputs, build string) error {
	op, err := projection.NewLinear(dev, projection.LinearConfig{N: in.y.Shape[0], K: in.y.Shape[1], Weights: projection.FormatBF16,
		Out: tensor.BF16, Variant: build, OnDemand: true})
	if err != nil {
		return err
	}
	return op.Record(rec, projection.LinearArgs{X: in.x, W: projection.LinearWeights{Data: in.y}, Out: in.out})
}

func prefillInputs(dev *vk.Device, s sizes) (*inputs, error) {
	in, t := &inputs{}, s.tokens/4
	in.list.Add(&in.x, tensor.BF16, t, s.heads, cache.D)
	in.list.Add(&in.y, tensor.BF16, s.rows, cache.D)
	in.list.Add(&in.indices, tensor.I32, t, s.rows/8)
	in.list.Add(&in.out, tensor.BF16, t, s.heads, cache.D)
	return in.filled(dev, func() {
		in.put(in.x, in.normal(in.x.Len()))
		in.put(in.y, in.normal(in.y.Len()))
		in.put(in.indices, integers(in.indices, func(i int) int { return i * 29 % s.rows }))
	})
}

func recordPrefill(dev *vk.Device, rec *vk.Recorder, in *inputs, build string) error {
	op, err := attention.NewPrefill(dev, attention.PrefillConfig{Heads: in.x.Shape[1], Splits: 1, Variant: build, OnDemand: true})
	if err != nil {
		return err
	}
	return op.Record(rec, attention.PrefillArgs{Q: in.x, KV: in.y, Indices: in.indices, Out: in.out})
}

func decodeInputs(dev *vk.Device, s sizes) (*inputs, error) {
	layout, err := cache.NewLayout(page, 0)
	if err != nil {
		return nil, err
	}
	most, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: s.heads, WindowPage: page, Splits: attention.MaxSplits,
		Variant: opkit.Base, OnDemand: true})
	if err != nil {
		return nil, err
	}
	in, width := &inputs{}, s.rows*5/8
	in.list.Add(&in.x, tensor.BF16, 1, s.heads, cache.D)
	in.list.Add(&in.y, tensor.U8, s.rows/page, layout.Stride)
	in.list.Add(&in.indices, tensor.I32, 1, width)
	in.list.Add(&in.lens, tensor.I32, 1)
	in.list.Add(&in.scratch, tensor.U8, int(most.ScratchBytes(1, width, 0)))
	in.list.Add(&in.out, tensor.BF16, 1, s.heads, cache.D)
	return in.filled(dev, func() {
		in.put(in.x, in.normal(in.x.Len()))
		pool, slots := make([]byte, in.y.Bytes()), make([]int64, s.rows)
		for i := range slots {
			slots[i] = int64(i)
		}
		in.err = errors.Join(in.err, cache.InsertRef(pool, layout, in.normal(s.rows*cache.D), slots))
		in.put(in.y, pool)
		in.put(in.indices, integers(in.indices, func(i int) int { return i * 29 % s.rows }))
		in.put(in.lens, integers(in.lens, func(int) int { return width }))
	})
}

func recordDecode(dev *vk.Device, rec *vk.Recorder, in *inputs, build string) error {
	op, err := attention.NewDecoder(dev, attention.DecoderConfig{Heads: in.x.Shape[1], WindowPage: page, Variant: build, OnDemand: true})
	if err != nil {
		return err
	}
	rows := cache.KVCache{Pool: in.y, Layout: cache.Layout{Page: page, Stride: in.y.Shape[1]}}
	return op.Record(rec, attention.DecodeArgs{Q: in.x, Window: attention.SlotSet{Cache: rows, Indices: in.indices, Lens: in.lens},
		Scratch: in.scratch.View(), Out: in.out})
}

func scoreInputs(dev *vk.Device, s sizes) (*inputs, error) {
	layout, err := cache.NewIndexKeyLayout(cache.IndexKeyFP8, page, 0)
	if err != nil {
		return nil, err
	}
	in, t, keys := &inputs{}, s.tokens/16, 2*s.rows
	in.list.Add(&in.x, tensor.U8, t, s.heads, cache.IndexDim)
	in.list.Add(&in.y, tensor.U8, keys/page, layout.Stride)
	in.list.Add(&in.heads, tensor.F32, t, s.heads)
	in.list.Add(&in.indices, tensor.I32, 1, keys/page)
	in.list.Add(&in.lens, tensor.I32, t)
	in.list.Add(&in.requests, tensor.I32, t)
	in.list.Add(&in.out, tensor.F32, t, keys)
	return in.filled(dev, func() {
		queries, pool := []byte(nil), make([]byte, in.y.Bytes())
		for range t * s.heads {
			codes, _ := cache.QuantiseKeyRef(in.normal(cache.IndexDim), layout.Format) // any scale
			queries = append(queries, codes...)
		}
		for i := range int64(keys) {
			codes, scale := cache.QuantiseKeyRef(in.normal(cache.IndexDim), layout.Format)
			copy(pool[layout.RowOffset(i):], codes)
			copy(pool[layout.ScaleOffset(i):], scale[:])
		}
		in.put(in.x, queries)
		in.put(in.y, pool)
		in.put(in.heads, numfmt.BF16DecodeSlice(nil, in.normal(in.heads.Len())))
		in.put(in.indices, integers(in.indices, func(i int) int { return i * 29 % (keys / page) }))
		in.put(in.lens, integers(in.lens, func(int) int { return keys }))
		in.put(in.requests, integers(in.requests, func(int) int { return 0 }))
	})
}

func recordScores(dev *vk.Device, rec *vk.Recorder, in *inputs, build string) error {
	op, err := indexer.NewLogits(dev, indexer.LogitsConfig{Heads: in.x.Shape[1], Format: cache.IndexKeyFP8, Page: page, Variant: build})
	if err != nil {
		return err
	}
	keys := cache.IndexKeyCache{Pool: in.y, Layout: cache.IndexKeyLayout{Page: page, Stride: in.y.Shape[1], Format: cache.IndexKeyFP8}}
	return op.Record(rec, indexer.LogitsArgs{Q: in.x, Weights: in.heads, Keys: keys, BlockTable: in.indices, TokenToReq: in.requests,
		Lens: in.lens, Out: in.out})
}

// filled allocates the tensors of the list and has them filled with numbers that are always the
// same.
func (in *inputs) filled(dev *vk.Device, fill func()) (*inputs, error) {
	in.rng = rand.New(rand.NewPCG(1, 2))
	if in.arena, in.err = in.list.Allocate(dev, vk.DeviceLocal, "timed builds"); in.err == nil {
		fill()
	}
	if in.err != nil {
		in.close()
		return nil, in.err
	}
	return in, nil
}

// put uploads numbers, unless something failed before.
func (in *inputs) put(t tensor.Tensor, numbers any) {
	data, err := binary.Append(nil, binary.LittleEndian, numbers)
	if in.err = errors.Join(in.err, err); in.err == nil {
		in.err = t.Upload(context.Background(), data)
	}
}

// normal are n bf16 numbers of a normal distribution.
func (in *inputs) normal(n int) []uint16 {
	list := make([]uint16, n)
	for i := range list {
		list[i] = numfmt.BF16Encode(float32(in.rng.NormFloat64()))
	}
	return list
}

// integers are as many numbers as a tensor has.
func integers(t tensor.Tensor, f func(i int) int) []int32 {
	list := make([]int32, t.Len())
	for i := range list {
		list[i] = int32(f(i))
	}
	return list
}
