package cache

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// CompressHost are the operands of Compress in host memory, as CompressArgs
// documents them.
type CompressHost struct {
	Compression Compression
	Hadamard    bool
	Eps         float32 // 0 means 1e-6
	RopeStep    int     // 0 means 1

	Rows []float32 // [N, Dim], Compression.Ungated only

	Positions         []int32
	TokenToReq        []int32
	StateSlots, Slots []int64
	State             []byte // whole pages of Layout
	Layout            StateLayout
	StateTable        []int32 // [R, Width]
	Width             int
	Norm              []float32
	CosSin            []float32 // [rows, 64]
}

// compressTolerance is the relative error, of the magnitudes of the terms that a
// value is a sum of, that f32 arithmetic may make before a value is rounded.
const compressTolerance = 1e-6

// CompressedEntry is an entry before its last rounding to bf16.
type CompressedEntry struct {
	Token int
	Slot  int64     // in the output cache; may lie beyond its end
	Value []float64 // [Dim]
	Tol   []float64 // how far an f32 computation may be off: compressTolerance of the terms' magnitudes

	// With Compression.Latent: the latent, and the bits that f32 may round it to. Value is then the
	// rotated Latent in f32, which rounds alike on every device, and Tol is 0.
	Latent, LatentLo, LatentHi []uint16
}

// Entries computes, in float64, the entries that the tokens of a step complete.
//
// Tol of a pooled value is a millionth of sum_j |kv_j| w_j carried through norm and
// rotation: where the terms do not cancel, a millionth of the value itself. With
// Hadamard it also holds what rounding an input to the other side may change.
//
// The error is a *vk.ArgumentError.
func (in CompressHost) Entries() ([]CompressedEntry, error) {
	const op = "compress reference"
	in.Eps = cmp.Or(in.Eps, compressEps)
	in.RopeStep = max(in.RopeStep, 1)
	if err := in.check(op); err != nil {
		return nil, err
	}
	var entries []CompressedEntry
	for i := range in.tokens() {
		if !in.completes(i) {
			continue
		}
		p := int(in.Positions[i])
		if in.Compression.Latent {
			entries = append(entries, in.latentEntry(i))
			continue
		}
		value, magnitude := in.pool(int(in.TokenToReq[i]), p)
		in.norm(value, magnitude)
		in.rotate(p, value, magnitude)
		e := CompressedEntry{Token: i, Slot: in.Slots[i], Value: value, Tol: magnitude}
		for c := range e.Tol {
			e.Tol[c] *= compressTolerance
		}
		if in.Hadamard {
			e.hadamard()
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (in CompressHost) tokens() int {
	if in.Compression.Ungated {
		return len(in.Slots)
	}
	return len(in.StateSlots)
}

// completes tells whether token i ends a group and has a place for its entry.
func (in CompressHost) completes(i int) bool {
	p := int(in.Positions[i])
	if p < 0 || (p+1)%in.Compression.Ratio != 0 || in.Slots[i] < 0 {
		return false
	}
	if in.Compression.Ungated {
		return true
	}
	pages, requests := len(in.State)/in.Layout.Stride, len(in.StateTable)/in.Width
	r, s := int(in.TokenToReq[i]), in.StateSlots[i]
	return r >= 0 && r < requests && s >= 0 && s < int64(pages)*int64(in.Layout.Page)
}

// pool is v, and the same sum over magnitudes.
func (in CompressHost) pool(r, p int) (v, magnitude []float64) {
	c, l := in.Compression, in.Layout
	v, magnitude = make([]float64, c.Dim), make([]float64, c.Dim)
	rows := make([][]byte, c.Window()) // nil: absent
	for j := range rows {
		at := p - c.Window() + 1 + j
		if at < 0 || at/l.Page >= in.Width {
			continue
		}
		page := in.StateTable[r*in.Width+at/l.Page]
		if page < 0 || int(page) >= len(in.State)/l.Stride {
			continue
		}
		rows[j] = in.State[l.slotOffset(int64(page)*int64(l.Page)+int64(at%l.Page)):][:l.SlotBytes()]
	}
	number := func(row []byte, i int) float64 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:])))
	}
	channel := func(j, d int) int {
		if c.Overlap && j >= c.Ratio {
			return c.Dim + d // the newer half
		}
		return d
	}
	for d := range c.Dim {
		top := math.Inf(-1)
		for j, row := range rows {
			if row != nil {
				top = max(top, number(row, l.Channels+channel(j, d)))
			}
		}
		var sum, weight, size float64
		for j, row := range rows {
			if row != nil {
				kv, w := number(row, channel(j, d)), math.Exp(number(row, l.Channels+channel(j, d))-top)
				sum += kv * w
				size += math.Abs(kv) * w
				weight += w
			}
		}
		v[d], magnitude[d] = sum/weight, size/weight
	}
	return v, magnitude
}

func (in CompressHost) norm(v, magnitude []float64) {
	square := 0.0
	for _, x := range v {
		square += x * x
	}
	scale := 1 / math.Sqrt(square/float64(len(v))+float64(in.Eps))
	for d := range v {
		v[d] *= scale * float64(in.Norm[d])
		magnitude[d] *= scale * math.Abs(float64(in.Norm[d]))
	}
}

// angles is the row of CosSin of the entry that the token at position p completes.
func (in CompressHost) angles(p int) []float32 {
	row := min((p+1-in.Compression.Ratio)/in.RopeStep, len(in.CosSin)/RopeDim-1)
	return in.CosSin[row*RopeDim:][:RopeDim]
}

func (in CompressHost) rotate(p int, v, magnitude []float64) {
	angles := in.angles(p)
	for i := range RopeDim / 2 {
		cos, sin := float64(angles[i]), float64(angles[RopeDim/2+i])
		d := len(v) - RopeDim + 2*i
		e, o := v[d], v[d+1]
		v[d], v[d+1] = e*cos-o*sin, o*cos+e*sin
		e, o = magnitude[d], magnitude[d+1]
		cos, sin = math.Abs(cos), math.Abs(sin)
		magnitude[d], magnitude[d+1] = e*cos+o*sin, o*cos+e*sin
	}
}

// hadamard rotates the bf16-rounded values: y_i = 128^-0.5 sum_j (-1)^popcount(i&j) x_j.
func (e *CompressedEntry) hadamard() {
	scale := 1 / math.Sqrt(float64(len(e.Value)))
	x, tol := make([]float64, len(e.Value)), 0.0
	for j := range x {
		lo, hi := e.Rounded(j)
		x[j] = float64(numfmt.BF16Round(float32(e.Value[j])))
		tol += scale * (float64(numfmt.BF16Decode(hi)) - float64(numfmt.BF16Decode(lo)) + compressTolerance*math.Abs(x[j]))
	}
	for i := range x {
		y := 0.0
		for j := range x {
			if bits.OnesCount(uint(i&j))%2 == 0 {
				y += x[j]
			} else {
				y -= x[j]
			}
		}
		e.Value[i], e.Tol[i] = scale*y, tol
	}
}

// Rounded is the range of bf16 bits that value d may be rounded to; lo and hi are
// equal unless the value lies within Tol of a rounding boundary.
func (e *CompressedEntry) Rounded(d int) (lo, hi uint16) {
	return numfmt.BF16Encode(float32(e.Value[d] - e.Tol[d])), numfmt.BF16Encode(float32(e.Value[d] + e.Tol[d]))
}

// bf16 is the entry, rounded.
func (e *CompressedEntry) bf16() []uint16 {
	x := make([]uint16, len(e.Value))
	for d := range x {
		x[d] = numfmt.BF16Encode(float32(e.Value[d]))
	}
	return x
}

// CompressRef is the definition of Compress for K entries on host memory: pool are
// the bytes of pages of layout l. Its error is a *vk.ArgumentError; then nothing was
// written.
func CompressRef(pool []byte, l Layout, in CompressHost) error {
	if in.Compression.Dim != D {
		return pkg.Wrong("compress reference", "Compression.Dim", in.Compression.Dim, "%d", D)
	}
	entries, err := in.Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := InsertRef(pool, l, e.bf16(), []int64{e.Slot}); err != nil {
			return err
		}
	}
	return nil
}

// CompressKeysRef is the definition of Compress for indexer keys on host memory:
// pool is the bytes of pages of layout l. Its error is a *vk.ArgumentError; then nothing
// was written.
func CompressKeysRef(pool []byte, l IndexKeyLayout, in CompressHost) error {
	const op = "compress reference"
	if !in.Compression.keys() {
		return pkg.Wrong(op, "Compression.Dim", in.Compression.Dim, "%d", IndexDim)
	}
	if err := l.check(op); err != nil {
		return err
	}
	entries, err := in.Entries()
	if err != nil {
		return err
	}
	slots := int64(len(pool)/l.Stride) * int64(l.Page)
	for _, e := range entries {
		if e.Slot >= slots {
			continue
		}
		codes, scale := QuantiseKeyRef(e.bf16(), l.Format)
		copy(pool[l.RowOffset(e.Slot):], codes)
		copy(pool[l.ScaleOffset(e.Slot):], scale[:])
	}
	return nil
}

// QuantiseKeyRef quantises 128 bf16 values as indexer keys are stored: the codes, 128
// or 64 bytes, and the 4 scale bytes.
func QuantiseKeyRef(x []uint16, format IndexKeyFormat) (codes []byte, scale [IndexScaleBytes]byte) {
	codes = make([]byte, format.RowBytes())
	if format == IndexKeyFP8 {
		sb := numfmt.UE8M0Encode(amaxOf(x), numfmt.KCacheEps, numfmt.E4M3InvMax)
		for d, b := range x {
			codes[d] = numfmt.E4M3Encode(numfmt.BF16Decode(b) * numfmt.UE8M0Inverse(sb))
		}
		binary.LittleEndian.PutUint32(scale[:], math.Float32bits(numfmt.UE8M0Scale(sb)))
		return codes, scale
	}
	for b := range scale {
		block := x[32*b : 32*b+32]
		scale[b] = numfmt.UE8M0Encode(amaxOf(block), numfmt.MXFP4Eps, numfmt.E2M1InvMax)
		inverse := numfmt.UE8M0Inverse(scale[b])
		for d := 0; d < 32; d += 2 {
			codes[16*b+d/2] = numfmt.E2M1Pack(numfmt.E2M1Encode(numfmt.BF16Decode(block[d])*inverse),
				numfmt.E2M1Encode(numfmt.BF16Decode(block[d+1])*inverse))
		}
	}
	return codes, scale
}

func (in CompressHost) check(op string) error {
	c, check := in.Compression, in.checkGroups
	if c.Ungated {
		check = in.checkRows
	}
	if err := check(op); err != nil {
		return err
	}
	switch {
	case len(in.Norm) != c.Dim:
		return pkg.Wrong(op, "Norm", fmt.Sprintf("%d values", len(in.Norm)), "%v", c.Dim)
	case len(in.CosSin) == 0 || len(in.CosSin)%RopeDim != 0:
		return pkg.Wrong(op, "CosSin", fmt.Sprintf("%d values", len(in.CosSin)), "rows of 64")
	case c.Ratio%in.RopeStep != 0:
		return pkg.Wrong(op, "RopeStep", in.RopeStep, "a divisor of %d", c.Ratio)
	case in.Hadamard && !c.keys():
		return pkg.Wrong(op, "Hadamard", "true", "false: K entries are not rotated")
	case in.Hadamard && c.Latent:
		return pkg.Wrong(op, "Hadamard", "true", "false with Compression.Latent")
	}
	return nil
}

// checkGroups checks where the rows of groups are.
func (in CompressHost) checkGroups(op string) error {
	if err := checkStateRef(op, in.Layout, in.Compression); err != nil {
		return err
	}
	tokens := len(in.StateSlots)
	switch {
	case min(len(in.Positions), len(in.TokenToReq), len(in.Slots)) < tokens:
		return pkg.Wrong(op, "Positions, TokenToReq, Slots",
			fmt.Sprintf("%d, %d and %d", len(in.Positions), len(in.TokenToReq), len(in.Slots)), "at least %d tokens", tokens)
	case in.Width < 1 || len(in.StateTable) == 0 || len(in.StateTable)%in.Width != 0:
		return pkg.Wrong(op, "StateTable", fmt.Sprintf("%d entries", len(in.StateTable)), "rows of %d", in.Width)
	}
	return nil
}
