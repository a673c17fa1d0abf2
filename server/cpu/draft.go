package cpu

// State writes what a layer left of each token, the mean of its streams, to its place among those
// of other layers: columns at and on of states [T, width].
func (c *CPU) State(s *Streams, states []float32, at, width int) {
	n, d := c.cfg.Streams, c.cfg.Hidden
	c.pool.Run(s.T, func(t int) {
		to, y := states[t*width+at:][:d], s.Y[t*n*d:][:n*d]
		for k := range to {
			sum := float32(0)
			for i := range n {
				sum += y[i*d+k]
			}
			to[k] = c.round(sum / float32(n))
		}
	})
}

// Context computes what all layers of a draft block keep of tokens, x [T, D] from states
// [T, targets*D]: RMSNorm(RNE16(states . main); norm).
func (c *CPU) Context(states, x []float32) {
	m, d := &c.w.Draft.Main, c.cfg.Hidden
	T := len(x) / d
	c.heads.reset(T, m.K, formOf(m))
	for t := range T {
		c.heads.fill(t, states[t*m.K:][:m.K])
	}
	c.linear(x, m, &c.heads, T)
	c.pool.Run(T, func(t int) {
		row := x[t*d:][:d]
		for i, v := range row {
			row[i] = c.round(v)
		}
		c.norm(row, c.w.Draft.MainNorm)
	})
}

// Follow picks drafts from the tokens of blocks, ids [R*B], and their logits [R*B, V]: each is the
// most probable one after that before it, of equal ones the smallest id. The first one follows the
// block's first token.
//
//	draft[r][i] = argmax(logits[r*B+i] + out . in[draft[r][i-1]])
func (c *CPU) Follow(ids []int32, logits []float32, block int) [][]int32 {
	in, out := &c.w.Draft.MarkovIn, &c.w.Draft.MarkovOut
	v, R := c.cfg.Vocab, len(ids)/block
	drafts, row := make([][]int32, R), make([]float32, in.K)
	c.follow = room(c.follow, R*v)
	for i := range block {
		c.heads.reset(R, in.K, formOf(out))
		for r := range drafts {
			last := ids[r*block]
			if i > 0 {
				last = drafts[r][i-1]
			}
			in.Row(row, int(last))
			c.heads.fill(r, row)
		}
		c.linear(c.follow, out, &c.heads, R)
		for r := range drafts {
			best, sums := 0, c.follow[r*v:][:v]
			for id, l := range logits[(r*block+i)*v:][:v] {
				if sums[id] += l; sums[id] > sums[best] {
					best = id
				}
			}
			drafts[r] = append(drafts[r], int32(best))
		}
	}
	return drafts
}
