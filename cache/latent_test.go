package cache

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/vk"
)

// compressedFrequencies are those of DeepSeek-V4.1's compressed layers, as f32 bits.
var compressedFrequencies = [RopeDim / 2]uint32{
	0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d00, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb6, 0x3d94e963,
	0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b018, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88, 0x3bad3d5d, 0x3b6e4237,
	0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af, 0x39305978, 0x38be904d, 0x383e9b5e,
	0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8, 0x35ea77fd, 0x35a13bdc, 0x355dbf30, 0x35187c4d,
}

// Recorded latents and what they become: the rotation is that of the group's first token, and a
// number that another cosine rounds the other way is off by a step.
func TestRotateGolden(t *testing.T) {
	a := golden41(t)
	for _, c := range []struct {
		ratio              int
		at, latent, rotate string
	}{{2, "entry", "latent2", "ent_in2"}, {1, "token", "latent1", "ent_in1"}} {
		arrays := map[string][]uint16{}
		for _, name := range []string{c.latent, c.rotate} {
			x, err := a.Array(name)
			require.NoError(t, err)
			arrays[name] = x.U16()
		}
		at, err := a.Array(c.at)
		require.NoError(t, err)
		off, turned := 0, 0
		for i, j := range at.I32() {
			row := make([]float32, RopeDim)
			for k, f := range compressedFrequencies {
				angle := float64(float32(int(j)*c.ratio) * math.Float32frombits(f))
				row[k], row[RopeDim/2+k] = float32(math.Cos(angle)), float32(math.Sin(angle))
			}
			want := arrays[c.rotate][i*D : (i+1)*D]
			for d, got := range RotateRef(arrays[c.latent][i*D:(i+1)*D], row) {
				if d >= NopeDim && j > 0 && want[d] != arrays[c.latent][i*D+d] {
					turned++
				}
				if got == want[d] {
					continue
				}
				off++
				assert.True(t, d >= NopeDim && abs(numfmt.BF16Decode(got)-numfmt.BF16Decode(want[d])) < 1e-3+0.01*abs(numfmt.BF16Decode(got)),
					"ratio %d, entry %d, number %d: %g, want %g", c.ratio, j, d, numfmt.BF16Decode(got), numfmt.BF16Decode(want[d]))
			}
		}
		assert.LessOrEqual(t, off, 12, "ratio %d: numbers off", c.ratio)
		assert.Greater(t, turned, 500, "ratio %d: numbers turned", c.ratio)
	}
}

// latentOf is latentRef of exact values.
func latentOf(v []float64, norm []float32, eps float32) []uint16 {
	l, _, _ := latentRef(v, make([]float64, len(v)), norm, eps)
	return l
}

// The latent of numbers that were worked out by hand, and what each rounding changes.
func TestLatentRef(t *testing.T) {
	norm := make([]float32, D)
	v := make([]float64, D)
	for i := range v {
		v[i], norm[i] = 1e-12, 2
	}
	got := latentOf(v, norm, 1e-20)
	x := float64(numfmt.BF16Round(1e-12))
	want := numfmt.BF16Round(float32(2 * x / math.Sqrt(x*x+1e-20)))
	assert.Equal(t, numfmt.BF16Encode(want), got[7], "an epsilon of 1e-20 counts beside 1e-24 and not beside 1")
	for i := range v {
		v[i], norm[i] = 1, 1
	}
	v[1], v[2] = 1+0.49*0x1p-7, 1+0.51*0x1p-7 // either side of a tie between two bf16
	got = latentOf(v, norm, 1e-20)
	assert.Equal(t, uint16(0x3F80), got[1], "rounded before the norm")
	assert.Equal(t, uint16(0x3F81), got[2], "rounded before the norm")
	assert.Equal(t, make([]uint16, D), latentOf(make([]float64, D), norm, 1e-20), "zeros stay zeros")
}

// Entries of pairs are those of PoolRef and LatentRef, at the place and angle of their group.
func TestPairEntries(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	c := C2Main
	layout, err := NewStateLayout(c, 4, 0)
	require.NoError(t, err)
	const tokens = 5
	rows := make([]float32, tokens*2*D)
	for i := range rows {
		rows[i] = float32(rng.NormFloat64())
	}
	norm, table := make([]float32, D), make([]float32, tokens*RopeDim)
	for i := range norm {
		norm[i] = float32(1 + 0.1*rng.NormFloat64())
	}
	for i := range table {
		table[i] = float32(rng.NormFloat64())
	}
	in := CompressHost{Compression: c, Eps: 1e-20, Positions: []int32{0, 1, 2, 3, 4}, TokenToReq: make([]int32, tokens),
		StateSlots: []int64{4, 5, 6, 7, 0}, Slots: []int64{-1, 3, -1, 1, -1}, State: make([]byte, 2*layout.Stride),
		Layout: layout, StateTable: []int32{1, 0}, Width: 2, Norm: norm, CosSin: table}
	require.NoError(t, SaveStateRef(in.State, layout, c, rows, make([]float32, 2*D), in.Positions, in.StateSlots))
	entries, err := in.Entries()
	require.NoError(t, err)
	require.Len(t, entries, 2)
	row := func(i, half int) []float32 { return rows[(2*i+half)*D : (2*i+half+1)*D] }
	for j, e := range entries {
		v := poolRef([][]float32{row(2*j, 0), row(2*j+1, 0)}, [][]float32{row(2*j, 1), row(2*j+1, 1)})
		latent := latentOf(v, norm, 1e-20)
		assert.Equal(t, latent, e.Latent, "entry %d", j)
		assert.Equal(t, RotateRef(latent, table[2*j*RopeDim:][:RopeDim]), e.bf16(), "entry %d", j)
		for d := range latent {
			assert.LessOrEqual(t, bf16Rank(e.LatentLo[d]), bf16Rank(latent[d]))
			assert.GreaterOrEqual(t, bf16Rank(e.LatentHi[d]), bf16Rank(latent[d]))
		}
	}
	l := least(RecordFP4, 2)
	pool := make([]byte, 2*l.Stride)
	require.NoError(t, CompressRef(pool, l, in))
	back := make([]uint16, D)
	require.NoError(t, GatherSlotsRef(back, pool, l, []int32{3}))
	code, scales := encode(RecordFP4, entries[0].bf16())
	want := make([]uint16, D)
	RecordFP4.DecodeRef(want, code, scales)
	assert.Equal(t, want, back)
	// A token's own row, as ratio 1 and index keys have it.
	in.Compression, in.Rows = C1Index, rows
	in.Norm, in.Slots = norm[:IndexDim], []int64{0, 1, 2, -1, 4}
	entries, err = in.Entries()
	require.NoError(t, err)
	require.Len(t, entries, 4)
	wide := make([]float64, IndexDim)
	for d := range wide {
		wide[d] = float64(rows[4*IndexDim+d])
	}
	assert.Equal(t, latentOf(wide, in.Norm, 1e-20), entries[3].Latent)
	in.Rows = rows[:1]
	_, err = in.Entries()
	assert.ErrorIs(t, err, vk.ErrArgument, "too few rows")
	in.Compression = Compression{Dim: D, Ratio: 1, Ungated: true}
	_, err = in.Entries()
	assert.ErrorIs(t, err, vk.ErrArgument, "ungated without latent")
}

// bf16Rank orders bf16 bits as their values.
func bf16Rank(b uint16) int {
	if b&0x8000 != 0 {
		return -int(b & 0x7FFF)
	}
	return int(b)
}

// poolRef is the pooled value of a window of rows, kv and score, channel by channel:
//
//	v_c = sum_j kv_j,c w_j,c,  w_j,c = exp(score_j,c) / sum_j exp(score_j,c)
func poolRef(kv, score [][]float32) []float64 {
	v := make([]float64, len(kv[0]))
	for c := range v {
		top := math.Inf(-1)
		for j := range score {
			top = max(top, float64(score[j][c]))
		}
		var sum, weight float64
		for j := range kv {
			w := math.Exp(float64(score[j][c]) - top)
			sum += float64(kv[j][c]) * w
			weight += w
		}
		v[c] = sum / weight
	}
	return v
}
