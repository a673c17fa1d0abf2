package indexer_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/indexer"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// ragged is a prompt's scores as vLLM computes them: keys of all requests gathered to rows one
// after the other, cu[r] of them before those of request r, and for each token the rows that it
// sees, ks to ke-1. Numbers are small integers, so that every order of sums gives the same bits.
type ragged struct {
	heads   int
	keys    [][]int // [N, 128]
	scales  []float32
	queries [][]int // [T*H, 128]
	weights []float32
	ks, ke  []int // [T]
}

// logit is a score, from its definition: of token t and row n.
func (x *ragged) logit(t, n int) float32 {
	sum := float32(0)
	for h := range x.heads {
		dot := 0
		for d, q := range x.queries[t*x.heads+h] {
			dot += q * x.keys[n][d]
		}
		sum += float32(max(dot, 0)) * x.weights[t*x.heads+h]
	}
	return sum * x.scales[n]
}

// indexCodes are 128 numbers from -2 to 2 as a format stores them.
func indexCodes(f cache.IndexKeyFormat, v []int) (codes []byte) {
	for d := 0; d < len(v); d++ {
		if f == cache.IndexKeyFP8 {
			codes = append(codes, numfmt.E4M3Encode(float32(v[d])))
		} else if d%2 == 1 {
			codes = append(codes, numfmt.E2M1Pack(numfmt.E2M1Encode(float32(v[d-1])), numfmt.E2M1Encode(float32(v[d]))))
		}
	}
	return codes
}

// paged makes the operands of Logits of the same tokens: keys in permuted pages, block tables.
func (x *ragged) paged(rng *rand.Rand, f cache.IndexKeyFormat, cu, tokenToReq []int) indexer.LogitsHost {
	const page = 64
	requests, longest := len(cu)-1, 1
	for r := range requests {
		longest = max(longest, cu[r+1]-cu[r])
	}
	width := (longest + page - 1) / page
	l := cache.IndexKeyLayout{Page: page, Stride: (page*132 + 575) / 576 * 576, Format: f}
	p := indexer.LogitsHost{Heads: x.heads, Weights: x.weights, Pool: bytes.Repeat([]byte{0xFF}, requests*width*l.Stride), Layout: l,
		TableWidth: width, Width: longest}
	for _, id := range rng.Perm(requests * width) {
		p.BlockTable = append(p.BlockTable, int32(id))
	}
	for r := range requests {
		for i := range cu[r+1] - cu[r] {
			slot := int64(p.BlockTable[r*width+i/page])*page + int64(i%page)
			copy(p.Pool[l.RowOffset(slot):], indexCodes(f, x.keys[cu[r]+i]))
			scale := p.Pool[l.ScaleOffset(slot):][:cache.IndexScaleBytes]
			bits := math.Float32bits(x.scales[cu[r]+i])
			for b := range scale { // UE8M0 of each block
				scale[b] = byte(bits >> 23)
			}
			if f == cache.IndexKeyFP8 {
				binary.LittleEndian.PutUint32(scale, bits)
			}
		}
	}
	for t, r := range tokenToReq {
		p.TokenToReq, p.Lens = append(p.TokenToReq, int32(r)), append(p.Lens, int32(x.ke[t]-x.ks[t]))
	}
	for _, q := range x.queries {
		p.Q = append(p.Q, indexCodes(f, q)...)
		if f == cache.IndexKeyMXFP4 {
			p.QScale = append(p.QScale, 127, 127, 127, 127)
		}
	}
	return p
}

// same demands the scores of a token, from its first row on, and nothing after its last.
func (x *ragged) same(t *testing.T, token int, got []float32) {
	t.Helper()
	ks, ke := x.ks[token], x.ke[token]
	for n := ks; n < ke; n++ {
		require.Equal(t, x.logit(token, n), got[n-ks], "token %d, row %d", token, n)
	}
	for n, v := range got[ke-ks:] {
		require.Equal(t, uint32(logitsPoison), math.Float32bits(v), "token %d: %d behind its rows", token, n)
	}
}

// TestLogitsRagged demands that scores from pages are those of a prompt whose keys are gathered
// first, bit for bit, for every variant. That is why nothing here gathers keys.
//
// Source: vLLM v1/attention/backends/mla/indexer.py, which scores prompts by
// cp_gather_indexer_k_quant_cache and DeepGEMM's fp8_mqa_logits with ks and ke.
func TestLogitsRagged(t *testing.T) {
	dev := testkit.Device(t)
	const ratio, heads = 4, 16
	requests := []struct{ length, tokens int }{{531, 9}, {3, 3}, {260, 1}, {7, 5}, {258, 14}}
	for _, f := range indexFormats {
		rng := rand.New(rand.NewPCG(19, uint64(f)))
		numbers := func() []int {
			v := make([]int, cache.IndexDim)
			for i := range v {
				v[i] = rng.IntN(5) - 2
			}
			return v
		}
		x := ragged{heads: heads}
		cu, tokenToReq := []int{0}, []int(nil)
		for r, q := range requests {
			for range q.length / ratio {
				x.keys, x.scales = append(x.keys, numbers()), append(x.scales, float32(math.Ldexp(1, rng.IntN(7)-3)))
			}
			for p := q.length - q.tokens; p < q.length; p++ {
				x.ks, x.ke, tokenToReq = append(x.ks, cu[r]), append(x.ke, cu[r]+(p+1)/ratio), append(tokenToReq, r)
				for range heads {
					x.queries, x.weights = append(x.queries, numbers()), append(x.weights, float32(rng.IntN(7)-3))
				}
			}
			cu = append(cu, len(x.keys))
		}
		p := x.paged(rng, f, cu, tokenToReq)
		t.Run(f.String(), func(t *testing.T) {
			eachLogits(t, dev, func(t *testing.T, variant string) {
				got := logits(t, dev, p, must[*indexer.Logits](t)(indexer.NewLogits(dev, logitsConfig(p, variant))))
				for i := range tokenToReq {
					x.same(t, i, got[i*p.Width:][:p.Width])
				}
			})
		})
	}
}
