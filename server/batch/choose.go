package batch

import (
	"math"
	"slices"
)

// candidate is a token that may be drawn.
type candidate struct {
	id     int32
	weight float64
}

// before reports whether a is more probable than b, or as probable and smaller.
func (a candidate) before(b candidate) bool {
	return a.weight > b.weight || a.weight == b.weight && a.id < b.id
}

func mass(list []candidate) (sum float64) {
	for _, c := range list {
		sum += c.weight
	}
	return sum
}

// chosen returns the tokens that min_p, then top_k, then top_p leave, the smallest first. Nothing
// is sorted: a vocabulary takes as long as its weights.
func (d distribution) chosen(r *Request) []candidate {
	least := max(r.MinP, math.SmallestNonzeroFloat64)
	nucleus := r.TopP > 0 && r.TopP < 1
	all := math.Inf(1)
	if nucleus && r.TopK == 0 {
		all = 0
		for _, sum := range d.parts(func(i int) float64 { return d.least(i, r.Temperature, least) }) {
			all += sum
		}
	}
	var list []candidate
	for reach := 4.0; ; reach *= 2 { // as far below the most probable one as is enough
		list = d.within(r.Temperature, reach, least)
		if reach > -math.Log(least) || r.TopK > 0 && len(list) >= r.TopK || nucleus && r.TopK == 0 && mass(list) >= r.TopP*all {
			break
		}
	}
	if r.TopK > 0 {
		list = first(list, r.TopK, math.Inf(1))
		all = mass(list)
	}
	if nucleus {
		list = first(list, len(list), r.TopP*all)
	}
	return list
}

// least is the sum of a part's weights that are not below a bound.
func (d distribution) least(i int, temperature, bound float64) (sum float64) {
	for _, v := range d.part(i) {
		if w := weight(v, d.most, temperature); w >= bound {
			sum += w
		}
	}
	return sum
}

// within lists the tokens whose weights are not below a bound nor exp(-reach).
func (d distribution) within(temperature, reach, bound float64) (list []candidate) {
	least, n := float32(d.most-reach*temperature), 0
	for _, v := range d.logits {
		if v >= least {
			n++
		}
	}
	list = make([]candidate, 0, n)
	for id, v := range d.logits {
		if v < least {
			continue
		}
		if w := weight(v, d.most, temperature); w >= bound {
			list = append(list, candidate{int32(id), w})
		}
	}
	return list
}

// first returns the most probable candidates, as they are listed: as few as have a mass together,
// and at most n.
func first(list []candidate, n int, least float64) []candidate {
	if n >= len(list) && least >= mass(list) {
		return list
	}
	last := nth(slices.Clone(list), n, least)
	return slices.DeleteFunc(list, func(c candidate) bool { return last.before(c) })
}

// nth returns the last of the most probable candidates that are n, or have a mass together. It
// changes their order.
func nth(list []candidate, n int, least float64) (last candidate) {
	for len(list) > 0 {
		pivot := middle(list)
		front, sum := 0, 0.0
		for i, c := range list {
			if c.before(pivot) {
				list[i], list[front] = list[front], c
				front++
				sum += c.weight
			}
		}
		if front >= n || sum >= least {
			list = list[:front]
			continue
		}
		n, least, last = n-front-1, least-sum-pivot.weight, pivot
		if n <= 0 || least <= 0 {
			return last
		}
		list = slices.DeleteFunc(list[front:], func(c candidate) bool { return c == pivot })
	}
	return last
}

// middle returns the middle one of three.
func middle(list []candidate) candidate {
	a, b, c := list[0], list[len(list)/2], list[len(list)-1]
	if b.before(a) {
		a, b = b, a
	}
	if c.before(b) {
		b = c
		if b.before(a) {
			b = a
		}
	}
	return b
}
