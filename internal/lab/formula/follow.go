package formula

import (
	"math"
	"slices"

	"github.com/vkmla/vkmla/pipeline"
)

// Followed says how far a layer's outputs are from the definition's, which attends the layer's own
// picks, and which of these are not the definition's.
type Followed struct {
	Apart []float64 // of each token's output, by the length of the definition's
	Whole float64   // the same, of all outputs
	Picks int       // entries that the definition picks
	Few   int       // tokens with another number of picks

	Missed int     // picks of the definition alone
	Gap    float64 // by how much it prefers one of them to one of the layer's, of a token's mean score
}

// Follow takes the next T tokens as Step does, and compares what layers gave for them, whose picks
// it attends.
func (s *Sequence) Follow(hidden [][]float32, got []pipeline.Appended) (all [][]Rounded, how []Followed) {
	first, k := s.next, s.cfg.TopK
	s.Given = func(layer, p int) (picks, blocks []int) { return Picked(got[layer].TopK, k, p-first), nil }
	all = s.Step(hidden)
	for i, want := range all {
		f, outs := Followed{}, []float32(nil)
		for t, w := range want {
			f.Apart = append(f.Apart, Apart(got[i].Out[t*s.cfg.Hidden:], w.Out))
			if outs = append(outs, w.Out...); w.Picks == nil {
				continue
			}
			picked := Picked(got[i].TopK, k, t)
			if len(picked) != len(w.Picks) {
				f.Few++
			}
			mine, theirs := Minus(picked, w.Picks), Minus(w.Picks, picked)
			f.Picks, f.Missed = f.Picks+len(w.Picks), f.Missed+len(theirs)
			f.Gap = max(f.Gap, s.gap(w, all[s.cfg.Layers[i].CandidatesOf][t], mine, theirs))
		}
		f.Whole = Apart(got[i].Out, outs)
		how = append(how, f)
	}
	return all, how
}

// Apart returns the distance of the first numbers of a from b, by the length of b.
func Apart(a, b []float32) float64 {
	var d, of float64
	for i, w := range b {
		x := float64(a[i]) - float64(w)
		d, of = d+x*x, of+float64(w)*float64(w)
	}
	return math.Sqrt(d / of)
}

// Picked returns the entries that a token picked, of picks [T, k] with -1 where there are fewer.
func Picked(picks []int32, k, token int) []int {
	list := []int{}
	for _, e := range picks[token*k:][:k] {
		if e >= 0 {
			list = append(list, int(e))
		}
	}
	return list
}

// Minus returns what list has and other has not.
func Minus(list, other []int) []int {
	return slices.DeleteFunc(slices.Clone(list), func(e int) bool { return slices.Contains(other, e) })
}

// gap returns by how much, of a token's mean score, the definition prefers any of the entries
// `theirs` to any of `mine`. Where candidates differ too, an entry that it leaves out counts as its
// block does among maker's scores, and so does one that need not be a candidate.
func (s *Sequence) gap(w, maker Rounded, mine, theirs []int) (gap float64) {
	size := s.cfg.CandidateBlock
	tops, left := blockTops(size, maker), math.Inf(-1) // the best block left out
	least := math.Inf(1)                               // the least one that is a candidate by its score
	for block, top := range tops {
		switch {
		case !slices.Contains(maker.Blocks, block):
			left = max(left, top)
		case block < len(tops)-1: // the newest is one anyway
			least = min(least, top)
		}
	}
	for _, a := range mine {
		for _, b := range theirs {
			d := float64(w.Logits[b]-w.Logits[a]) / MeanSize(w.Logits)
			if out := math.IsInf(float64(w.Logits[a]), -1); len(tops) > 0 {
				switch block := b / size; {
				case out:
					d = (least - tops[a/size]) / MeanSize(maker.Logits)
				case block < len(tops)-1:
					d = min(d, (tops[block]-left)/MeanSize(maker.Logits))
				}
			}
			gap = max(gap, d)
		}
	}
	return gap
}

// blockTops returns the greatest score of each block of candidates, none where maker makes none.
func blockTops(size int, maker Rounded) (tops []float64) {
	if len(maker.Blocks) == 0 {
		return nil
	}
	for block := range slices.Chunk(maker.Logits, size) {
		tops = append(tops, float64(slices.Max(block)))
	}
	return tops
}

// MeanSize is the root of the mean square of a token's scores; those that it does not see are -Inf.
func MeanSize(scores []float32) float64 {
	n, sum := 0, 0.0
	for _, x := range scores {
		if x := float64(x); !math.IsInf(x, -1) {
			n, sum = n+1, sum+x*x
		}
	}
	return math.Sqrt(sum / float64(n))
}
