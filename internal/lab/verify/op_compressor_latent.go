package verify

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// latentSpecs are cases of the compressors of DeepSeek-V4.1: entries of two tokens and of one, in
// each record, or keys. Numbers of a tiny case are so small that only an epsilon as small as theirs
// leaves them alone.
func latentSpecs(c cache.Compression, records ...cache.Record) (specs []compressorSpec) {
	for _, record := range records {
		one, broken := map[string]any{"one_launch": 1}, 0
		if c.Ungated { // one launch that saves wants a request's tokens side by side
			broken = 14
		}
		specs = append(specs,
			compressorSpec{record: record, statePage: 8, page: 32, requests: [][2]int{{0, 17}, {5, 2}, {64, 1}, {63, 1}}, params: one},
			compressorSpec{record: record, statePage: 8, page: 32, requests: [][2]int{{1, 69}}, pads: broken / 4,
				broken: broken, f32: true, params: one})
		if record == records[0] {
			specs = append(specs,
				compressorSpec{record: record, statePage: 8, page: 32, requests: [][2]int{{2, 21}}, tiny: true, params: one})
		}
		if record == records[0] && !c.Ungated {
			specs = append(specs,
				compressorSpec{record: record, statePage: 3, page: 3, requests: [][2]int{{3, 321}, {7, 4}}, padding: 16, broken: 7})
		}
	}
	return specs
}

// withLatent adds what a case of a latent compressor has beyond those of DeepSeek-V4: no positional
// term, and without gates one row a token.
func (b *compressorBuilder) withLatent(in Arrays, params map[string]any) {
	c := b.spec.c
	if !c.Latent {
		return
	}
	params["latent"], params["eps"] = 1, 1e-20
	in["ape"] = vectors.FromF32(make([]float32, c.Ratio*c.Channels()), c.Ratio, c.Channels())
	if b.spec.record != cache.RecordV4 {
		params["record"] = int(b.spec.record)
	}
	rows := in["kv_score"].F32()
	if c.Ungated {
		params["ungated"] = 1
		tokens := in["kv_score"].Dim(0)
		var own []float32
		for i := range tokens {
			own = append(own, rows[2*i*c.Dim:(2*i+1)*c.Dim]...)
		}
		rows = own
		in["kv_score"] = vectors.FromF32(rows, tokens, c.Dim)
	}
	if b.spec.tiny {
		for _, name := range []string{"kv_score", "state_before"} {
			x, width := in[name].F32(), in[name].Dim(len(in[name].Shape)-1)
			for i := range x {
				if i%width < c.Dim { // not the scores
					x[i] *= 1e-11
				}
			}
			in[name] = vectors.FromF32(x, in[name].Shape...)
		}
	}
}

// makes returns the entries that have a slot in the pool.
func (s compressorInput) makes(entries []cache.CompressedEntry) (made []cache.CompressedEntry) {
	for _, e := range entries {
		if e.Slot < int64(s.pool.Dim(0)*s.page) {
			made = append(made, e)
		}
	}
	return made
}

// latents returns the rows of a step's latents that belong to entries; all others must be as they
// were.
func (s compressorInput) latents(all Array) (Array, error) {
	entries, err := s.host(s.state.Data).Entries()
	if err != nil {
		return Array{}, err
	}
	size, rest, rows := 2*s.c.Dim, append([]byte(nil), all.Data...), []byte{}
	made := s.makes(entries)
	for _, e := range made {
		rows = append(rows, all.Data[e.Token*size:(e.Token+1)*size]...)
		copy(rest[e.Token*size:], bytes.Repeat([]byte{poisonFloat}, size))
	}
	if i := slices.IndexFunc(rest, func(b byte) bool { return b != poisonFloat }); i >= 0 {
		return Array{}, fmt.Errorf("verify: stray write: byte %d of the latents, of a token that makes no entry", i)
	}
	return Array{Type: vectors.U16, Shape: []int{len(made), s.c.Dim}, Data: rows}, nil
}

// compareLatent holds latents against what float64 allows, and the pool against the latents, from
// which its bytes follow exactly.
func (s compressorInput) compareLatent(cmp *Comparison, got, want Arrays, host cache.CompressHost,
	entries []cache.CompressedEntry) *Comparison {
	if !cmp.Same("latent", got["latent"], want["latent"]) {
		return cmp
	}
	latent, pool, off := got["latent"].U16(), s.pool.Clone(), 0
	for i, e := range s.makes(entries) {
		row := latent[i*s.c.Dim : (i+1)*s.c.Dim]
		for d, b := range row {
			if b != e.Latent[d] {
				off++
			}
			if bf16Order(b) < bf16Order(e.LatentLo[d]) || bf16Order(b) > bf16Order(e.LatentHi[d]) {
				return cmp.Fail("latent of token %d, number %d: 0x%04x, want 0x%04x to 0x%04x", e.Token, d, b, e.LatentLo[d], e.LatentHi[d])
			}
		}
		x, err := host.Rotated(e.Token, row)
		if err != nil {
			return cmp.Fail("%v", err)
		}
		if s.format == 0 {
			l := s.kvLayout()
			l.Record.EncodeRef(pool.Data[l.RowOffset(e.Slot):][:l.Record.RowBytes()], pool.Data[l.ScaleOffset(e.Slot):][:l.Record.ScaleBytes()], x)
			continue
		}
		l := s.keyLayout()
		codes, scale := cache.QuantiseKeyRef(x, s.format)
		copy(pool.Data[l.RowOffset(e.Slot):], codes)
		copy(pool.Data[l.ScaleOffset(e.Slot):], scale[:])
	}
	limit := max(boundaryShare*float64(len(latent)), 1)
	cmp.Criterion(float64(off) <= limit, float64(off), limit,
		fmt.Sprintf("latent: %d of %d numbers differ where rounding is undecided", off, len(latent)))
	return cmp.Exact("kv_cache_after", got["kv_cache_after"], pool)
}
