package bench

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/vkmla/vkmla/internal/lab/vectors"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/projection"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// outputHeads is how many heads share a group of the output projection, of numbers of
// heads that it divides.
const outputHeads = 8

func (r *opRig) inverseRope(t, heads int) error {
	bytes := t * (heads*2*2*projection.RopeDim + 4 + 4*projection.RopeDim)
	r.rotate(bytes)
	o, pattern := r.rowsBF16(t*heads, t, heads, projection.D)
	op, err := projection.NewInverseRope(r.dev, projection.InverseRopeConfig{MaxBytes: o[0].Bytes()})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	table, rope, positions := r.turns(t)
	at := put(r, tensor.I32, positions, t)
	record := func(rec *vk.Recorder, i int) error {
		return op.Record(rec, projection.InverseRopeArgs{O: o[i%len(o)], Positions: at, Table: table})
	}
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.once(record, func(ctx context.Context, set int, c *verify.Comparison) error {
		for _, i := range some(4, t) {
			got, err := fetch[uint16](ctx, o[set].Rows(i, i+1))
			if err != nil {
				return err
			}
			want := r.outputRows(pattern, (set*t+i)*heads, heads)
			if err := projection.InverseRopeRef(want, heads, positions[i:i+1], rope); err != nil {
				return err
			}
			c.Exact(fmt.Sprintf("output of token %d", i), vectors.FromU16(got, heads, projection.D), vectors.FromU16(want, heads, projection.D))
		}
		return nil
	})
	return r.err
}

// outputRows is a copy of n rows of a pattern.
func (r *opRig) outputRows(pattern []uint16, first, n int) (v []uint16) {
	for i := range n {
		v = append(v, rowOf(pattern, first+i)...)
	}
	return v
}

func (r *opRig) inverseRopeQuant(t, heads int, packed bool) error {
	scaleBytes, per, layout, dt := 4*projection.HeadBlocks, projection.HeadBlocks, projection.ScaleF32, tensor.F32
	if packed {
		scaleBytes, per, layout, dt = 4, 1, projection.ScalePacked, tensor.I32
	}
	bytes := t * (heads*(3*projection.D+scaleBytes) + 4 + 4*projection.RopeDim)
	r.rotate(bytes)
	width := min(outputHeads, heads&-heads)
	groups := heads / width
	o, pattern := r.rowsBF16(t*heads, t, heads, projection.D)
	op, err := projection.NewInverseRopeQuant(r.dev, projection.InverseRopeQuantConfig{Groups: groups, Heads: width, Scales: layout, MaxBytes: o[0].Bytes()})
	if err != nil {
		return err
	}
	r.variant = op.Variant()
	table, rope, positions := r.turns(t)
	at := put(r, tensor.I32, positions, t)
	padded := projection.PaddedTokens(t)
	var sets []projection.InverseRopeQuantArgs
	for s := range r.sets {
		sets = append(sets, projection.InverseRopeQuantArgs{O: o[s], Positions: at, Table: table,
			Codes: r.out(tensor.U8, groups, t, width*projection.D), Scales: r.out(dt, groups, width*per, padded)})
	}
	record := func(rec *vk.Recorder, i int) error { return op.Record(rec, sets[i%len(sets)]) }
	r.parts = []opPart{{bytes: float64(bytes), record: record}}
	r.once(record, func(ctx context.Context, set int, c *verify.Comparison) error {
		codes, err := fetch[byte](ctx, sets[set].Codes)
		if err != nil {
			return err
		}
		scales := make([]byte, sets[set].Scales.Bytes())
		if err := sets[set].Scales.Download(ctx, scales); err != nil {
			return err
		}
		for _, i := range some(4, t) {
			want, bits := make([]byte, heads*projection.D), make([]byte, heads*projection.HeadBlocks)
			if err := projection.InverseRopeQuantRef(r.outputRows(pattern, (set*t+i)*heads, heads), groups, width, positions[i:i+1], rope, want, bits); err != nil {
				return err
			}
			var got, gotBits []byte
			for g := range groups {
				got = append(got, codes[(g*t+i)*width*projection.D:][:width*projection.D]...)
			}
			for b := range bits { // byte b%4 of head b/4
				if packed {
					gotBits = append(gotBits, scales[4*(b/projection.HeadBlocks*padded+i)+b%projection.HeadBlocks])
				} else {
					gotBits = append(gotBits, byte(binary.LittleEndian.Uint32(scales[4*(b*padded+i):])>>23))
				}
			}
			c.Exact(fmt.Sprintf("codes of token %d", i), vectors.FromU8(got, heads, projection.D), vectors.FromU8(want, heads, projection.D)).
				Exact(fmt.Sprintf("scales of token %d", i), vectors.FromU8(gotBits, heads, projection.HeadBlocks), vectors.FromU8(bits, heads, projection.HeadBlocks))
		}
		return nil
	})
	return r.err
}
