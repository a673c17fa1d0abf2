package cpu

import (
	"math"

	"github.com/vkmla/vkmla/server/weights"
)

// Streams is the state of T tokens between layers.
type Streams struct {
	T   int
	IDs []int32   // [T] token ids
	Y   []float32 // [T, n, D]
	// Of the sub-layer that was entered last: post [T, n], comb [T, n, n].
	post, comb []float32
	squares    []float32 // [T, parts]: sums of squares of pieces of Y
}

// mixing computes what the hyper-connection of one token makes of m [(2+n)n]: pre [n], post [n] and
// comb [n, n], whose first index is the source.
func mixing(pre, post, comb, m []float32, h *weights.Hyper, steps int, eps float32) {
	n := len(pre)
	at := func(i, scale int) float64 { return float64(m[i]*h.Scale[scale] + h.Base[i]) }
	for i := range n {
		pre[i] = float32(sigmoid(at(i, 0))) + eps
		post[i] = 2 * float32(sigmoid(at(n+i, 1)))
	}
	for i := range n { // a softmax over destinations is the first step by rows
		row, top, sum := comb[i*n:][:n], math.Inf(-1), 0.0
		for j := range row {
			top = max(top, at(2*n+i*n+j, 2))
		}
		for j := range row {
			row[j] = float32(math.Exp(at(2*n+i*n+j, 2) - top))
			sum += float64(row[j])
		}
		for j := range row {
			row[j] = row[j]/float32(sum) + eps
		}
	}
	for step := range steps {
		if step > 0 {
			for i := range n {
				divide(comb, i*n, 1, n, eps)
			}
		}
		for j := range n {
			divide(comb, j, n, n, eps)
		}
	}
}

// divide divides n numbers, some apart, by their sum and eps.
func divide(a []float32, first, apart, n int, eps float32) {
	sum := eps
	for i := range n {
		sum += a[first+i*apart]
	}
	for i := range n {
		a[first+i*apart] /= sum
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// Embed begins with token ids: every stream is the token's row of the embedding.
func (c *CPU) Embed(s *Streams, ids []int32) {
	n, d := c.cfg.Streams, c.cfg.Hidden
	s.T, s.IDs = len(ids), ids
	s.Y = room(s.Y, s.T*n*d)
	s.post, s.comb = room(s.post, s.T*n), room(s.comb, s.T*n*n)
	s.squares = room(s.squares, s.T*c.pieces())
	c.pool.Run(s.T, func(t int) {
		y := s.Y[t*n*d:][:n*d]
		c.w.Embed.Row(y[:d], int(ids[t]))
		for i := 1; i < n; i++ {
			copy(y[i*d:], y[:d])
		}
		for p := range c.pieces() {
			c.square(s, t, p)
		}
	})
}

// pieceColumns is the columns of a token, of all streams, that one task mixes.
const pieceColumns = 512

func (c *CPU) pieces() int { return (c.cfg.Hidden + pieceColumns - 1) / pieceColumns }

// square adds up the squares of a piece of all streams of a token.
func (c *CPU) square(s *Streams, t, piece int) {
	n, d := c.cfg.Streams, c.cfg.Hidden
	first, end := piece*pieceColumns, min((piece+1)*pieceColumns, d)
	sum := float32(0)
	for i := range n {
		for _, v := range s.Y[(t*n+i)*d:][first:end] {
			sum += v * v
		}
	}
	s.squares[t*c.pieces()+piece] = sum
}

// factor is rsqrt(mean(Y^2) + eps) of a token: the norm of a hyper-connection has no weight.
func (c *CPU) factor(s *Streams, t int) float32 {
	sum := 0.0
	for _, v := range s.squares[t*c.pieces():][:c.pieces()] {
		sum += float64(v)
	}
	return float32(1 / math.Sqrt(sum/float64(c.cfg.Streams*c.cfg.Hidden)+float64(c.cfg.Eps)))
}

// Enter makes the input x [T, D] of a sub-layer from the streams, and keeps what Leave needs:
//
//	pre, post, comb = HC(Y);  u = RNE16(sum_i pre[i]*Y[i]);  x = RMSNorm(u; norm)
func (c *CPU) Enter(s *Streams, h *weights.Hyper, norm, x []float32) {
	n, d, m := c.cfg.Streams, c.cfg.Hidden, c.mix(s, h)
	rows := h.Fn.N
	c.pool.Run(s.T, func(t int) {
		pre := make([]float32, n)
		mixing(pre, s.post[t*n:][:n], s.comb[t*n*n:][:n*n], m[t*rows:][:rows], h, c.cfg.SinkhornSteps, c.cfg.HyperEps)
		u := x[t*d:][:d]
		c.gather(u, pre, s.Y[t*n*d:][:n*d])
		c.norm(u, norm)
	})
}

// mix multiplies the normed streams with the weights of a hyper-connection: m = r * (fn . Y).
func (c *CPU) mix(s *Streams, h *weights.Hyper) []float32 {
	width, out := c.cfg.Streams*c.cfg.Hidden, h.Fn.N
	c.streams.reset(s.T, width, formOf(&h.Fn))
	c.pool.Run(s.T, func(t int) { c.streams.fill(t, s.Y[t*width:][:width]) })
	c.mixed = room(c.mixed, s.T*out)
	c.linear(c.mixed, &h.Fn, &c.streams, s.T)
	for t := range s.T {
		r := c.factor(s, t)
		for i := range out {
			c.mixed[t*out+i] *= r
		}
	}
	return c.mixed
}

// gather is u = RNE16(sum_i pre[i]*Y[i]) of one token.
func (c *CPU) gather(u, pre, y []float32) {
	d := len(u)
	for k := range u {
		sum := float32(0)
		for i, p := range pre {
			sum += p * y[i*d+k]
		}
		u[k] = c.round(sum)
	}
}

// norm is RMSNorm(x; w) = RNE16(x * rsqrt(mean(x^2) + eps) * w), in place.
func (c *CPU) norm(x, w []float32) {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	r := float32(1 / math.Sqrt(sum/float64(len(x))+float64(c.cfg.Eps)))
	for i, v := range x {
		x[i] = c.round(v * r * w[i])
	}
}

// Leave mixes the output f [T, D] of the sub-layer back:
//
//	Y[j] = RNE16(post[j]*f + sum_i comb[i][j]*Y[i])
func (c *CPU) Leave(s *Streams, f []float32) {
	n, d, pieces := c.cfg.Streams, c.cfg.Hidden, c.pieces()
	c.pool.Run(s.T*pieces, func(task int) {
		t, p := task/pieces, task%pieces
		post, comb, y := s.post[t*n:][:n], s.comb[t*n*n:][:n*n], s.Y[t*n*d:][:n*d]
		old := make([]float32, n)
		for k := p * pieceColumns; k < min((p+1)*pieceColumns, d); k++ {
			for i := range old {
				old[i] = y[i*d+k]
			}
			for j := range n {
				sum := post[j] * f[t*d+k]
				for i, v := range old {
					sum += comb[i*n+j] * v
				}
				y[j*d+k] = c.round(sum)
			}
		}
		c.square(s, t, p)
	})
}

// Head computes the logits [len(tokens), V] of some tokens: HeadInput . head.
func (c *CPU) Head(s *Streams, drafts bool, tokens []int, logits []float32) {
	if len(tokens) == 0 {
		return
	}
	d := c.cfg.Hidden
	x := make([]float32, len(tokens)*d)
	c.HeadInput(s, drafts, tokens, x)
	c.heads.reset(len(tokens), d, formOf(&c.w.Head))
	for i := range tokens {
		c.heads.fill(i, x[i*d:][:d])
	}
	c.linear(logits, &c.w.Head, &c.heads, len(tokens))
}

// HeadInput computes what the head is multiplied by, x [len(tokens), D], after the model's own
// layers or after those that draft:
//
//	p = sigmoid(r*(fn.x)*scale + base) + eps;  w = RNE16(sum_i p[i]*Y[i])
//	x = RMSNorm(w; norm)
func (c *CPU) HeadInput(s *Streams, drafts bool, tokens []int, x []float32) {
	h, norm := &c.w.HeadHC, c.w.Norm
	if drafts {
		h, norm = &c.w.Draft.HeadHC, c.w.Draft.Norm
	}
	n, d := c.cfg.Streams, c.cfg.Hidden
	m := c.mix(s, h)
	c.pool.Run(len(tokens), func(i int) {
		t, u, p := tokens[i], x[i*d:][:d], make([]float32, n)
		for k := range p {
			p[k] = float32(sigmoid(float64(m[t*n+k]*h.Scale[0]+h.Base[k]))) + c.cfg.HyperEps
		}
		c.gather(u, p, s.Y[t*n*d:][:n*d])
		c.norm(u, norm)
	})
}
