package formula

import (
	"math"
	"slices"
)

// Agreement says how close a layer came to the formula.
type Agreement struct {
	Diff  float64 // 1 - cos of the outputs of tokens that attend the same entries, all together
	Worst float64 // the largest 1 - cos of one such token
	At    int     // that token

	Missed, Picks int // entries that should have been attended and were not, of all
	Short         int // tokens that attend fewer or more entries than they should
	Same, Tokens  int // tokens that attend the same entries, of all
}

// Compare compares the outputs [T, Hidden] of a layer with what Run gives. given are the entries
// picked, [T, K] and -1 where there are fewer; nil for a layer without an indexer.
func (r Result) Compare(got []float32, given []int32) Agreement {
	a := Agreement{Tokens: len(r.Out)}
	var product, squares float64
	for t, want := range r.Out {
		missed := 0
		if given != nil {
			k, most := len(given)/len(r.Out), 0
			for _, e := range given[t*k : (t+1)*k] {
				if e >= 0 {
					most++
				}
			}
			if most != len(r.Picks[t]) {
				a.Short++
			}
			for _, e := range r.Picks[t] {
				if !slices.Contains(given[t*k:(t+1)*k], int32(e)) {
					missed++
				}
			}
		}
		a.Missed, a.Picks = a.Missed+missed, a.Picks+len(r.Picks[t])
		if missed > 0 {
			continue
		}
		a.Same++
		var p, s float64
		for d, w := range want {
			v := float64(got[t*len(want)+d])
			p, s = p+v*w, s+v*v+w*w
		}
		product, squares = product+p, squares+s
		if one := 1 - 2*p/s; !(one <= a.Worst) {
			a.Worst, a.At = one, t
		}
	}
	a.Diff = 1 - 2*product/squares
	if math.IsNaN(a.Worst) {
		a.Worst = math.Inf(1)
	}
	return a
}
