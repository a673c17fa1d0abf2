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

// Flat returns outputs [T, Hidden], and picks [T, k], -1 where there are fewer.
func (r Result) Flat(k int) (out []float32, picks []int32) {
	for t, row := range r.Out {
		out, picks = append(out, narrow(row)...), append(picks, Padded(r.Picks[t], k)...)
	}
	return out, picks
}

// Padded returns the first k picks, and -1 where there are fewer.
func Padded(picks []int, k int) []int32 {
	all := slices.Repeat([]int32{-1}, k)
	for i, e := range picks[:min(k, len(picks))] {
		all[i] = int32(e)
	}
	return all
}

// Compare compares the outputs [T, Hidden] of a layer with what Run gives. given are the entries
// picked, [T, K] and -1 where there are fewer; nil for a layer without an indexer.
func (r Result) Compare(got []float32, given []int32) Agreement {
	want, picks := r.Flat(len(given) / len(r.Out))
	return Compare(got, want, given, picks, len(r.Out))
}

// Compare compares the outputs of a layer for a number of tokens, and its picks, with those that
// are wanted; both have no picks without an indexer.
func Compare(got, want []float32, given, picks []int32, tokens int) Agreement {
	a := Agreement{Tokens: tokens}
	picked := func(list []int32) (n int) {
		for _, e := range list {
			if e >= 0 {
				n++
			}
		}
		return n
	}
	k, width := len(picks)/tokens, len(want)/tokens
	var product, squares float64
	for t := range tokens {
		missed := 0
		given, picks := given[t*k:(t+1)*k], picks[t*k:(t+1)*k]
		if picked(given) != picked(picks) {
			a.Short++
		}
		for _, e := range picks {
			if e >= 0 && !slices.Contains(given, e) {
				missed++
			}
		}
		a.Missed, a.Picks = a.Missed+missed, a.Picks+picked(picks)
		if missed > 0 {
			continue
		}
		a.Same++
		var p, s float64
		for d := t * width; d < (t+1)*width; d++ {
			v, w := float64(got[d]), float64(want[d])
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
