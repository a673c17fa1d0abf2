package formula

import (
	"cmp"
	"math"
	"slices"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
	"github.com/vkmla/vkmla/pipeline/model"
)

// query holds what a token asks with.
type query struct {
	heads      [][]float64 // [H][512], turned
	bottleneck []float64
}

func (l *state) query(s *Sequence, x []float64, p int) *query {
	qr := l.normed(s, "q_norm", l.product(s, "wq_a", x))
	q := query{bottleneck: qr}
	for h := range slices.Chunk(s.rounded(l.product(s, "wq_b", qr)), cache.D) {
		if r := 1 / math.Sqrt(dot(h, h)/float64(len(h))+float64(s.cfg.Eps)); !s.cfg.PlainQueries {
			for d := range h {
				h[d] *= r
			}
		}
		q.heads = append(q.heads, s.turned(&l.turns, h, p, 1))
	}
	return &q
}

// choose returns what a layer's indexer makes of a token.
func (l *state) choose(s *Sequence, q *query, x []float64, p int) (r Rounded) {
	if l.Picks != model.PickOwn {
		return r
	}
	n := (p + 1) / l.Ratio
	r.Logits = l.scores(s, q, x, n, p)
	if l.Candidates == model.CandidatesMade {
		r.Blocks = s.candidates(r.Logits)
	}
	if l.Candidates == model.CandidatesUsed {
		in := make([]bool, n)
		for _, b := range s.layers[l.CandidatesOf].blocks[p] {
			for e := b * s.cfg.CandidateBlock; e < min((b+1)*s.cfg.CandidateBlock, n); e++ {
				in[e] = true
			}
		}
		for e := range in {
			if !in[e] {
				r.Logits[e] = float32(math.Inf(-1))
			}
		}
	}
	r.Picks = best(r.Logits, s.cfg.TopK)
	return r
}

// scores returns those of the first n entries.
func (l *state) scores(s *Sequence, q *query, x []float64, n, p int) []float32 {
	keys := s.layers[l.EntriesOf].keys
	weights := s.rounded(l.product(s, "indexer.weights_proj", x))
	scale := 1 / math.Sqrt(float64(cache.IndexDim*s.cfg.IndexHeads))
	sums := make([]float64, n)
	round := func(v float64) float64 {
		if s.num.Logits {
			return float64(numfmt.BF16Round(float32(v)))
		}
		return v
	}
	h := 0
	for iq := range slices.Chunk(s.rounded(l.product(s, "indexer.wq_b", q.bottleneck)), cache.IndexDim) {
		asked := s.key(s.turned(&l.turns, iq, p, 1)).values
		w := round(weights[h] * scale)
		for e := range sums {
			sums[e] += round(max(round(dot(asked, keys[e].values)), 0) * w)
		}
		h++
	}
	for e := range sums {
		sums[e] = round(sums[e])
	}
	return narrow(sums)
}

// best returns the k largest that are not -Inf, older ones first where they are equal, ascending.
func best[T float32 | float64](scores []T, k int) []int {
	list := []int{}
	for e, v := range scores {
		if !math.IsInf(float64(v), -1) {
			list = append(list, e)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	list = list[:min(k, len(list))]
	slices.Sort(list)
	return list
}

// candidates returns the blocks with the largest scores, the newest among them.
func (s *Sequence) candidates(scores []float32) []int {
	var top []float32
	for block := range slices.Chunk(scores, s.cfg.CandidateBlock) {
		top = append(top, slices.Max(block))
	}
	if len(top) > 0 {
		top[len(top)-1] = float32(math.Inf(1))
	}
	return best(top, s.cfg.CandidateBlocks)
}

// out returns what a layer gives for a token that attends rows.
func (l *state) out(s *Sequence, q *query, rows []row, p int) []float32 {
	sinks, wide := l.values("attn_sink"), s.cfg.HeadsPerGroup()*cache.D
	var o []float64
	for h, head := range q.heads {
		o = append(o, s.turned(&l.turns, s.rounded(s.attend(head, rows, float64(sinks[h]))), p, -1)...)
	}
	wa := l.values("wo_a.weight")
	z := make([]float64, s.cfg.Groups*s.cfg.ORank)
	for n := range z {
		z[n] = dot(wa[n*wide:(n+1)*wide], o[n/s.cfg.ORank*wide:][:wide])
	}
	return narrow(s.rounded(l.product(s, "wo_b", s.rounded(z))))
}

// attend returns the output of a head. Rows come in parts of 64. Weights, relative to the largest
// score so far, are rounded to bf16 before they multiply rows, and not before they are added up.
func (s *Sequence) attend(q []float64, rows []row, sink float64) []float64 {
	out, of, top := make([]float64, len(q)), 0.0, -1e30
	for part := range slices.Chunk(rows, 64) {
		scores, before := make([]float64, len(part)), top
		for i, r := range part {
			scores[i] = dot(q, r.values) / math.Sqrt(cache.D)
			top = max(top, scores[i])
		}
		shrink := math.Exp(before - top)
		of *= shrink
		for d := range out {
			out[d] *= shrink
		}
		for i, r := range part {
			w := math.Exp(scores[i] - top)
			of += w
			if !s.num.Exact {
				w = float64(numfmt.BF16Round(float32(w)))
			}
			for d, v := range r.values {
				out[d] += w * v
			}
		}
	}
	of += math.Exp(sink - top)
	for d := range out {
		out[d] /= of
	}
	return out
}
