package layers

import (
	"fmt"
	"math"
	"slices"

	"github.com/vkmla/vkmla/internal/lab/verify"
)

// agreement says how close a layer came to what is wanted.
type agreement struct {
	diff  float64 // 1 - cos of the outputs of tokens that attend the same entries, all together
	worst float64 // the largest 1 - cos of one such token
	at    int     // that token

	missed, picks int // entries that should have been attended and were not, of all
	short         int // tokens that attend fewer or more entries than they should
	same, tokens  int // tokens that attend the same entries, of all
}

// padded returns the first k picks, and -1 where there are fewer.
func padded(picks []int, k int) []int32 {
	all := slices.Repeat([]int32{-1}, k)
	for i, e := range picks[:min(k, len(picks))] {
		all[i] = int32(e)
	}
	return all
}

// compare compares the outputs of a layer for a number of tokens, and its picks, with those that
// are wanted; both have no picks without an indexer.
func compare(got, want []float32, given, picks []int32, tokens int) agreement {
	a := agreement{tokens: tokens}
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
			a.short++
		}
		for _, e := range picks {
			if e >= 0 && !slices.Contains(given, e) {
				missed++
			}
		}
		a.missed, a.picks = a.missed+missed, a.picks+picked(picks)
		if missed > 0 {
			continue
		}
		a.same++
		var p, s float64
		for d := t * width; d < (t+1)*width; d++ {
			v, w := float64(got[d]), float64(want[d])
			p, s = p+v*w, s+v*v+w*w
		}
		product, squares = product+p, squares+s
		if one := 1 - 2*p/s; !(one <= a.worst) {
			a.worst, a.at = one, t
		}
	}
	a.diff = 1 - 2*product/squares
	if math.IsNaN(a.worst) {
		a.worst = math.Inf(1)
	}
	return a
}

// judge adds the criteria of a layer: of its outputs, and that nearly all picks are those of the
// formula, from which rounding moves a few, at most such a part.
func (a agreement) judge(c *verify.Comparison, name string, diff, worst, most float64) {
	c.Criterion(a.diff < diff, a.diff, diff, fmt.Sprintf("%sout: 1 - cos is %.3g", name, a.diff))
	c.Criterion(a.worst < worst, a.worst, worst, fmt.Sprintf("%sout: 1 - cos of token %d is %.3g", name, a.at, a.worst))
	c.Criterion(a.short == 0, float64(a.short), 0,
		fmt.Sprintf("%stopk: %d of %d tokens have another number of entries", name, a.short, a.tokens))
	c.Criterion(float64(a.missed) <= most*float64(a.picks), float64(a.missed), most*float64(a.picks),
		fmt.Sprintf("%stopk: %d of %d entries were not picked", name, a.missed, a.picks))
	few := float64(a.tokens-a.same) / float64(a.tokens)
	c.Criterion(few <= 0.75, few, 0.75, fmt.Sprintf("%stopk: %d of %d tokens have the same entries", name, a.same, a.tokens))
}
