package verify

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func init() {
	Register(compressorOp("compressor_main_kv", 0, []cache.Compression{C4Main, C128Main}, func(seed uint64) []Case {
		return slices.Concat(random4(seed, C4Main, 0), random128(seed), randomRatios(seed, ratios, cache.D, 0),
			compressorCases(seed+41, C2Main, 0, latentSpecs(C2Main, cache.RecordFP4, cache.RecordV4)),
			compressorCases(seed+42, C1Main, 0, latentSpecs(C1Main, cache.RecordFP4, cache.RecordFP8)))
	}))
	for _, x := range []struct {
		name   string
		format cache.IndexKeyFormat
		ratios []ratioSpec
	}{{"compressor_indexer_k_fp8", cache.IndexKeyFP8, ratiosFP8}, {"compressor_indexer_k_mxfp4", cache.IndexKeyMXFP4, ratiosMXFP4}} {
		Register(compressorOp(x.name, x.format, []cache.Compression{C4Index}, func(seed uint64) []Case {
			return slices.Concat(random4(seed, C4Index, x.format), randomRatios(seed, x.ratios, cache.IndexDim, x.format),
				compressorCases(seed+43, C2Index, x.format, latentSpecs(C2Index, 0)),
				compressorCases(seed+44, C1Index, x.format, latentSpecs(C1Index, 0)))
		}))
	}
}

// compressorOp describes the operation of one kind of compressor: saving a step's
// states, then compressing the groups that it completes. format is 0 for K entries.
func compressorOp(name string, format cache.IndexKeyFormat, kinds []cache.Compression, random func(seed uint64) []Case) Op {
	op := Op{Name: name, Class: ClassBoundary, Variants: opkit.Builds("kv_compress"), Random: random}
	op.Of = Of{"cache.SaveState cache.Compress", "kv_save_state kv_compress", "compressor.save, compressor.compress"}
	if format != 0 {
		op.Of.Sections = "indexer.compressor.save, indexer.compressor.compress"
	}
	op.Timing = Timing{Suite: "indexer", Sizes: func(o SizeOptions) (all []Size) {
		for _, c := range kinds {
			all = append(all, compressorSizes(o, c, format)...)
		}
		return all
	}}
	read := readAs(readCompressor, format)
	op.Ref = refBy(read, compressorInput.reference)
	op.Bind = bindBy(read, func(b Build, s compressorInput) (Bound, error) { return s.bind(b) })
	op.Compare = compareBy(ClassBoundary, read, func(cmp *Comparison, _ Case, s compressorInput, got, want Arrays) {
		s.compare(cmp, got, want)
	})
	op.After = func(c Case, _ string, got Arrays) (Arrays, error) {
		s, err := read(c)
		if err != nil {
			return nil, err
		}
		after, err := s.unpadded(got["state"])
		if err != nil {
			return nil, err
		}
		results, err := s.results(after, got["pool"])
		if err == nil && s.c.Latent {
			results["latent"], err = s.latents(got["latent"])
		}
		return results, err
	}
	return op
}

// compressorInput is a case of a compressor.
type compressorInput struct {
	format                         cache.IndexKeyFormat
	c                              cache.Compression
	record                         cache.Record
	page, ropeStep, invocations    int
	hadamard, one                  bool // one launch saves and compresses
	eps                            float32
	kvScore, ape, positions, toReq Array
	stateSlots, table, slots       Array
	norm, cosSin, state, pool      Array
	layout                         cache.StateLayout // of the state's pages as the case has them
	stride                         int               // bytes of a state page on the device
}

// readCompressor reads a case. Of the rotary table it has only the rows of some
// positions; the rest becomes poison.
func readCompressor(c Case, format cache.IndexKeyFormat) (s compressorInput, err error) {
	in := c.Input()
	s.format = format
	s.c = cache.Compression{Dim: in.Int("head_dim"), Ratio: in.Int("compress_ratio")}
	overlap := 0 // recorded cases don't say it: V4 has overlap with ratio 4
	if s.c.Ratio == 4 {
		overlap = 1
	}
	s.c.Overlap = in.IntOr("compress_overlap", overlap) != 0
	s.page, s.hadamard = in.Int("kv_block_size"), in.IntOr("hadamard", 0) != 0
	s.invocations, s.ropeStep = in.IntOr("invocations", 0), in.IntOr("rope_step", s.c.Ratio)
	s.one, s.eps = in.IntOr("one_launch", 0) != 0, float32(in.Float("eps"))
	channels := s.c.Channels()
	s.c.Latent, s.c.Ungated, s.record = in.IntOr("latent", 0) != 0, in.IntOr("ungated", 0) != 0, recordOf(in, "record")
	s.kvScore = in.Array("kv_score", vectors.F32, -1, s.c.Columns())
	s.ape = in.Array("ape", vectors.F32, s.c.Ratio, channels)
	s.positions = toI32(in.Array("positions", vectors.I64, -1))
	s.toReq = in.Array("token_to_req", vectors.I32, -1)
	s.stateSlots, s.slots = in.Array("state_slot_mapping", vectors.I64, -1), in.Array("kv_slot_mapping", vectors.I64, -1)
	s.table = in.Array("state_block_table", vectors.I32, -1, -1)
	if s.norm = c.In["norm_weight"]; s.norm.Type != vectors.U16 {
		s.norm = in.Array("norm_weight", vectors.F32, s.c.Dim)
	}
	s.state = in.Array("state_before", vectors.F32, -1, in.Int("state_block_size"), 2*channels)
	s.pool = in.Array("kv_cache_before", vectors.U8, -1, -1)
	s.layout = cache.StateLayout{Page: s.state.Dim(1), Stride: 8 * channels * s.state.Dim(1), Channels: channels}
	s.stride = s.layout.Stride + in.IntOr("state_padding_bytes", 0)
	at, rows := in.Array("cos_sin_pos", vectors.I64, -1), in.Array("cos_sin_rows", vectors.F32, -1, cache.RopeDim)
	if err := in.Err(); err != nil {
		return s, err
	}
	s.cosSin, err = scatterRows(at.I64(), rows, s.ropeStep)
	return s, err
}

// scatterRows makes a rotary table with a row for every step positions out of those
// of some positions.
func scatterRows(at []int64, rows Array, step int) (Array, error) {
	last := int64(0)
	for _, p := range at {
		if step < 1 || p < 0 || p > 1<<22 || p%int64(step) != 0 || len(at) != rows.Dim(0) {
			return Array{}, fmt.Errorf("verify: rotary table: a row for position %d, one every %d: %w", p, step, vectors.ErrFormat)
		}
		last = max(last, p/int64(step))
	}
	t := vectors.Filled(poisonFloat, vectors.F32, int(last)+1, cache.RopeDim)
	for i, p := range at {
		const size = 4 * cache.RopeDim
		copy(t.Data[p/int64(step)*size:], rows.Data[i*size:(i+1)*size])
	}
	return t, nil
}

// toI32 narrows an array of I64.
func toI32(a Array) Array {
	if a.IsZero() {
		return a
	}
	v := make([]int32, a.Len())
	for i, x := range a.I64() {
		v[i] = int32(max(min(x, math.MaxInt32), math.MinInt32))
	}
	return vectors.FromI32(v, a.Shape...)
}

// written returns the state slots that the step writes, in the order of its tokens.
func (s compressorInput) written() []int64 {
	slots := []int64{}
	positions := s.positions.I32()
	for i, slot := range s.stateSlots.I64() {
		if slot >= 0 && slot < int64(s.state.Dim(0)*s.layout.Page) && positions[i] >= 0 {
			slots = append(slots, slot)
		}
	}
	return slots
}

// results returns a case's results from the state and the pool as they became. Of the
// state it takes the rows that were written; all others must be as they were.
func (s compressorInput) results(state, pool Array) (Arrays, error) {
	if s.c.Ungated {
		return Arrays{"kv_cache_after": pool}, nil
	}
	slots, size := s.written(), 8*s.layout.Channels
	rows, rest := []byte{}, append([]byte(nil), state.Data...)
	for _, slot := range slots {
		rows = append(rows, state.Data[slot*int64(size):][:size]...)
	}
	for _, slot := range slots {
		copy(rest[slot*int64(size):][:size], s.state.Data[slot*int64(size):][:size])
	}
	if !bytes.Equal(rest, s.state.Data) {
		return nil, fmt.Errorf("verify: stray write: a state that no token names was changed")
	}
	return Arrays{
		"state_row_slots": vectors.FromI64(slots, len(slots)),
		"state_rows":      Array{Type: vectors.F32, Shape: []int{len(slots), 2 * s.layout.Channels}, Data: rows},
		"kv_cache_after":  pool,
	}, nil
}

// host returns the case's input to the reference, with the given state.
func (s compressorInput) host(state []byte) cache.CompressHost {
	norm := s.norm.F32
	if s.norm.Type == vectors.U16 {
		norm = func() []float32 { return numfmt.BF16DecodeSlice(nil, s.norm.U16()) }
	}
	host := cache.CompressHost{
		Compression: s.c, Hadamard: s.hadamard, Eps: s.eps, RopeStep: s.ropeStep,
		Positions: s.positions.I32(), TokenToReq: s.toReq.I32(), StateSlots: s.stateSlots.I64(), Slots: s.slots.I64(),
		State: state, Layout: s.layout, StateTable: s.table.I32(), Width: s.table.Dim(1), Norm: norm(), CosSin: s.cosSin.F32(),
	}
	if s.c.Ungated {
		host.Rows = s.kvScore.F32()
	}
	return host
}

// saved returns the state after the step's tokens were saved.
func (s compressorInput) saved() (Array, error) {
	state := s.state.Clone()
	if s.c.Ungated {
		return state, nil
	}
	err := cache.SaveStateRef(state.Data, s.layout, s.c, s.kvScore.F32(), s.ape.F32(), s.positions.I32(), s.stateSlots.I64())
	return state, err
}

func (s compressorInput) kvLayout() cache.Layout {
	return cache.Layout{Page: s.page, Stride: s.pool.Dim(1), Record: s.record}
}

func (s compressorInput) keyLayout() cache.IndexKeyLayout {
	return cache.IndexKeyLayout{Page: s.page, Stride: s.pool.Dim(1), Format: s.format}
}

func (s compressorInput) reference() (Arrays, error) {
	state, err := s.saved()
	if err != nil {
		return nil, err
	}
	pool := s.pool.Clone()
	if s.format == 0 {
		err = cache.CompressRef(pool.Data, s.kvLayout(), s.host(state.Data))
	} else {
		err = cache.CompressKeysRef(pool.Data, s.keyLayout(), s.host(state.Data))
	}
	if err != nil {
		return nil, err
	}
	results, err := s.results(state, pool)
	if err == nil && s.c.Latent {
		entries, _ := s.host(state.Data).Entries()
		var latent []uint16
		made := s.makes(entries)
		for _, e := range made {
			latent = append(latent, e.Latent...)
		}
		results["latent"] = vectors.FromU16(latent, len(made), s.c.Dim)
	}
	return results, err
}

func (s compressorInput) bind(b Build) (Bound, error) {
	pooled := s.c
	pooled.Ungated = false // nothing saves states then
	save, err := cache.NewSaveState(b.Dev, cache.SaveStateConfig{Compression: pooled, Page: s.layout.Page,
		MaxBytes: b.MaxBytes, Variant: b.Variant})
	if err != nil {
		return Bound{}, err
	}
	if s.invocations > int(b.Dev.Caps().MaxWorkgroupInvocations) {
		s.invocations = 0 // the best that there is
	}
	compress, err := cache.NewCompress(b.Dev, cache.CompressConfig{
		Compression: s.c, StatePage: s.layout.Page, Page: s.page, Record: s.record, Keys: s.format, Hadamard: s.hadamard,
		Eps: s.eps, RopeStep: s.ropeStep, Invocations: s.invocations, MaxBytes: b.MaxBytes, Variant: b.Variant,
		Save: s.one,
	})
	if err != nil {
		return Bound{}, err
	}
	return Bound{compress.Variant(), func(r *Rig) Launch {
		saves, args, out := s.place(r)
		saving := func(rec *vk.Recorder) error { return save.Record(rec, saves) }
		compressing := func(rec *vk.Recorder) error { return compress.Record(rec, args) }
		if s.c.Latent {
			args.Latent = r.Out(tensor.BF16, s.slots.Dim(0), s.c.Dim)
			out["latent"] = args.Latent
		}
		if s.c.Ungated {
			args.KvScore = saves.KvScore
			args.State = cache.StateCache{}
			args.StateTable, args.StateSlots, args.TokenToReq = tensor.Tensor{}, tensor.Tensor{}, tensor.Tensor{}
			return Launch{Out: out, Args: &args, Record: compressing}
		}
		if s.one {
			args.KvScore, args.Ape = saves.KvScore, saves.Ape
			return Launch{Out: out, Args: &args, Record: compressing}
		}
		return Launch{
			Out:   out,
			Args:  &args,
			Parts: []Part{{"save", saving}, {"compress", compressing}},
			Record: func(rec *vk.Recorder) error {
				if err := saving(rec); err != nil {
					return err
				}
				return compressing(rec)
			},
		}
	}}, nil
}

func (s compressorInput) place(r *Rig) (saves cache.SaveStateArgs, args cache.CompressArgs, out map[string]tensor.Tensor) {
	layout := s.layout
	layout.Stride = s.stride
	states := r.Pool(s.padded(), Pages{Page: layout.Page})
	state := cache.StateCache{Pool: states.Tensor, Layout: layout}
	dt := tensor.F32
	if s.norm.Type == vectors.U16 {
		dt = tensor.BF16
	}
	pool := r.Pool(s.pool, Pages{Page: s.page})
	saves = cache.SaveStateArgs{KvScore: r.In(s.kvScore, tensor.F32), Ape: r.Shared(s.ape, tensor.F32),
		Positions: r.Shared(s.positions, tensor.I32), Slots: r.Index(states, s.stateSlots, tensor.I64, true), State: state}
	args = cache.CompressArgs{
		Positions: saves.Positions, TokenToReq: r.Shared(s.toReq, tensor.I32), StateSlots: saves.Slots,
		Slots: r.Index(pool, s.slots, tensor.I64, true),
		State: state, StateTable: r.Index(states, s.table, tensor.I32, false), Norm: r.Shared(s.norm, dt),
		CosSin: r.Shared(s.cosSin, tensor.F32),
		Cache:  kvCache(pool.Tensor, s.kvLayout()),
	}
	if s.format != 0 {
		args.Cache, args.Keys = cache.KVCache{}, cache.IndexKeyCache{Pool: pool.Tensor, Layout: s.keyLayout()}
	}
	return saves, args, map[string]tensor.Tensor{"state": state.Pool, "pool": pool.Tensor}
}

// padded returns the state with the device's page stride, the padding poisoned.
func (s compressorInput) padded() Array {
	pages := s.state.Dim(0)
	p := vectors.Filled(poisonOther, vectors.U8, pages, s.stride)
	for g := range pages {
		copy(p.Data[g*s.stride:], s.state.Data[g*s.layout.Stride:(g+1)*s.layout.Stride])
	}
	return p
}

func (s compressorInput) unpadded(p Array) (Array, error) {
	state := s.state.Clone()
	for g := range s.state.Dim(0) {
		page := p.Data[g*s.stride : (g+1)*s.stride]
		copy(state.Data[g*s.layout.Stride:], page[:s.layout.Stride])
		for i, b := range page[s.layout.Stride:] {
			if b != poisonOther {
				return Array{}, fmt.Errorf("verify: stray write: byte %d of the padding of state page %d was changed", i, g)
			}
		}
	}
	return state, nil
}

// float64Bound bounds the distance of exact values from recorded ones, which were computed in
// float64 elsewhere and stored in f32.
var float64Bound = Tolerance{Abs: 1e-6, Rel: 1e-6}

func (s compressorInput) compare(cmp *Comparison, got, want Arrays) *Comparison {
	if !s.c.Ungated {
		cmp.Exact("state_row_slots", got["state_row_slots"], want["state_row_slots"])
		cmp.Exact("state_rows", got["state_rows"], want["state_rows"])
	}
	state, err := s.saved()
	if err != nil {
		return cmp.Fail("%v", err)
	}
	entries, err := s.host(state.Data).Entries()
	if err != nil {
		return cmp.Fail("%v", err)
	}
	if s.c.Latent {
		return s.compareLatent(cmp, got, want, s.host(state.Data), entries)
	}
	if recorded, ok := want["ref64_rotated"]; ok {
		exact := []float32{}
		for _, e := range entries {
			for _, v := range e.Value {
				exact = append(exact, float32(v))
			}
		}
		cmp.Close("ref64_rotated", vectors.FromF32(exact, len(entries), s.c.Dim), recorded, float64Bound)
	}
	if s.format == 0 {
		return cmp.BoundaryKV("kv_cache_after", got["kv_cache_after"], want["kv_cache_after"], entries, s.kvLayout())
	}
	return cmp.BoundaryKeys("kv_cache_after", got["kv_cache_after"], want["kv_cache_after"], entries, s.keyLayout())
}
