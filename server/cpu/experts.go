package cpu

import (
	"math"
	"slices"

	"github.com/vkmla/vkmla/server/weights"
)

// swiglu returns silu(a) * b * v, after the clamp: a from above only, b from both sides.
func swiglu(a, b, v, limit float32) float32 {
	if limit > 0 {
		a, b = min(a, limit), min(max(b, -limit), limit)
	}
	return float32(float64(a)/(1+math.Exp(-float64(a)))) * b * v
}

// group is the tokens that one expert computes. Its pairs of token and expert are numbered from
// first on.
type group struct {
	expert *weights.Expert
	tokens []int32
	v      []float32 // the router's weights; nil: 1
	first  int
}

func w1(e *weights.Expert) *weights.Matrix { return &e.W1 }
func w2(e *weights.Expert) *weights.Matrix { return &e.W2 }
func w3(e *weights.Expert) *weights.Matrix { return &e.W3 }

// formsOf are those that a layer's experts need of some matrices. Nothing says that all are alike.
func formsOf(l *weights.Layer, of ...func(*weights.Expert) *weights.Matrix) (list []form) {
	add := func(e *weights.Expert) {
		for _, m := range of {
			if f := formOf(m(e)); !slices.Contains(list, f) {
				list = append(list, f)
			}
		}
	}
	for i := range l.Experts {
		add(&l.Experts[i])
	}
	add(&l.Shared)
	return list
}

// Experts is the sub-layer of experts: f [T, D] from x [T, D].
//
//	h = RNE16(swiglu(x.w1, x.w3, v))
//	f = RNE16(sum of h.w2 over the token's experts, the shared one last)
//
// If shared is not nil, it returns what the shared expert gives, [T, D], and is called at the end.
func (c *CPU) Experts(layer int, s *Streams, x, f []float32, shared func() []float32) {
	l, d := &c.w.Layers[layer], c.cfg.Hidden
	c.input.reset(s.T, d, append(formsOf(l, w1, w3), formOf(&l.Gate))...)
	c.pool.Run(s.T, func(t int) { c.input.fill(t, x[t*d:][:d]) })
	groups, slots := c.route(l, s, shared == nil)
	for _, g := range groups {
		c.read += g.expert.W1.Bytes() + g.expert.W3.Bytes() + g.expert.W2.Bytes()
	}

	// h of all pairs, then their outputs, each in one go over all cores.
	pairs := s.T * (c.cfg.PerToken + 1)
	c.hidden.reset(pairs, c.cfg.Width, formsOf(l, w2)...)
	c.blocks(groups, w1, c.gateAndUp)
	if c.hidden.wanted[wholes] {
		c.pool.Run(pairs, c.hidden.finish)
	}
	c.outputs = room(c.outputs, pairs*d)
	c.blocks(groups, w2, func(g *group, first, end int) {
		take := c.everyToken[g.first:][:len(g.tokens)] // their pairs are numbered in order
		product(&g.expert.W2, &c.hidden, take, first, end, c.outputs[g.first*d+first:], d)
	})
	k, pieces := len(slots)/s.T, c.pieces()
	var last []float32
	if shared != nil {
		last = shared()
	}
	c.pool.Run(s.T*pieces, func(task int) {
		t, first := task/pieces, task%pieces*pieceColumns
		sum := f[t*d:][:d][first:min(first+pieceColumns, d)]
		clear(sum)
		for _, pair := range slots[t*k:][:k] {
			for i, v := range c.outputs[int(pair)*d+first:][:len(sum)] {
				sum[i] += v
			}
		}
		for i, v := range sum {
			if last != nil {
				v += last[t*d+first+i]
			}
			sum[i] = c.round(v)
		}
	})
}

// route chooses the experts of all tokens, with the shared one or without. It returns the groups
// and, for each token, its pairs in the order of the sum.
func (c *CPU) route(l *weights.Layer, s *Streams, shared bool) (groups []group, slots []int32) {
	experts, k := c.cfg.Experts, c.cfg.PerToken
	c.logits = room(c.logits, s.T*experts)
	c.linear(c.logits, &l.Gate, &c.input, s.T)
	chosen, v := make([]int32, s.T*k), make([]float32, s.T*k)
	c.pool.Run(s.T, func(t int) {
		choose(chosen[t*k:][:k], v[t*k:][:k], c.logits[t*experts:][:experts], l, s.IDs[t], c.cfg)
	})
	where := make([]int, experts)
	for e := range where {
		where[e] = -1
	}
	for i, e := range chosen {
		if where[e] < 0 {
			where[e] = len(groups)
			groups = append(groups, group{expert: &l.Experts[e]})
		}
		g := &groups[where[e]]
		g.tokens, g.v = append(g.tokens, int32(i/k)), append(g.v, v[i])
	}
	first := 0
	next := make([]int, len(groups))
	for i := range groups {
		groups[i].first, next[i] = first, first
		first += len(groups[i].tokens)
	}
	for i, e := range chosen {
		slots = append(slots, int32(next[where[e]]))
		next[where[e]]++
		if shared && i%k == k-1 { // the shared expert comes last
			slots = append(slots, int32(first+i/k))
		}
	}
	c.all(s.T * (k + 1))
	if !shared {
		return groups, slots
	}
	return append(groups, group{expert: &l.Shared, tokens: c.all(s.T), first: first}), slots
}

// blocks calls f for pieces of a matrix's rows, of all groups, on all cores.
func (c *CPU) blocks(groups []group, of func(*weights.Expert) *weights.Matrix, f func(g *group, first, end int)) {
	type task struct{ group, first, end int }
	var tasks []task
	for i := range groups {
		m := of(groups[i].expert)
		block := rowsOfTask(m)
		for r := 0; r < m.N; r += block {
			tasks = append(tasks, task{i, r, min(r+block, m.N)})
		}
	}
	c.pool.Run(len(tasks), func(i int) { f(&groups[tasks[i].group], tasks[i].first, tasks[i].end) })
}

// gateAndUp computes columns first to end-1 of a group's h.
func (c *CPU) gateAndUp(g *group, first, end int) {
	n := end - first
	a, b := make([]float32, n*len(g.tokens)), make([]float32, n*len(g.tokens))
	product(&g.expert.W1, &c.input, g.tokens, first, end, a, n)
	product(&g.expert.W3, &c.input, g.tokens, first, end, b, n)
	for t := range g.tokens {
		v := float32(1)
		if g.v != nil {
			v = g.v[t]
		}
		h := a[t*n:][:n]
		for i := range h {
			h[i] = c.round(swiglu(h[i], b[t*n+i], v, c.cfg.Limit))
		}
		c.hidden.set(g.first+t, first, h)
	}
}
