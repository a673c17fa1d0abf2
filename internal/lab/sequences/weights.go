package sequences

import (
	"math/rand/v2"
	"strings"

	"github.com/vkmla/vkmla/cache"
)

// The numbers of a hidden state. Of the weights of products that lead to caches and picks, one in
// a row is not zero: their sums are the same in any order, so caches and picks are the same bytes
// in any division of a sequence into steps, by whatever kernel.
const (
	features = 64           // of a token's content, and of what it wants
	wanted   = features     // where the latter begins
	constant = 2 * features // 1 in every token
	salient  = constant + 1 // makes a token's content that of the entry of its group
	hidden   = 192
)

// salience is so large that the weights of all others in a group are 0 beside it.
const salience = 128

// code says in which order content is written to a place where it is kept. A token that wants it by
// another code does not find it.
type code [features]int

// The codes: of rows of a window, of entries by the group before their own, and of entries by
// their own.
var codeWindow, codeBefore, codeOwn = newCode(1), newCode(2), newCode(3)

func newCode(seed uint64) (c code) {
	copy(c[:], rand.New(rand.NewPCG(seed, 77)).Perm(features))
	return c
}

// sign returns the sign of number d of a head, in queries and in what is kept.
func sign(d int) float32 { return float32(1 - 2*(d*d/3+d/5%2)%2) }

// The outputs of a layer are numbers of its two heads: those that are turned of the first, and some
// others of the second. What is left of a layer's output is 0.
func output(j int) (d int) {
	if j < turned {
		return cache.D - turned + j
	}
	return j
}

const (
	turned  = 64 // numbers of a head that positions turn, the last
	outputs = 2 * turned
)

// weights gives the weights of the model; norms, sinks and the like are random.
func weights(name string, shape []int) []float32 {
	_, stem, _ := strings.Cut(name, ".attn.")
	if strings.HasSuffix(stem, ".ape") {
		return apart(shape)
	}
	at := pick(strings.TrimSuffix(stem, ".weight"), shape)
	if at == nil {
		return nil
	}
	v := make([]float32, shape[0]*shape[1])
	for row := range shape[0] {
		if column, value := at(row); value != 0 {
			v[row*shape[1]+column] = value
		}
	}
	return v
}

// apart are scores of positions in a group, large enough for each to count differently.
func apart(shape []int) []float32 {
	rng, v := rand.New(rand.NewPCG(5, 77)), make([]float32, shape[0]*shape[1])
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

// pick says which number a row of a matrix takes, and what it multiplies it with.
func pick(stem string, shape []int) func(row int) (column int, value float32) {
	switch stem {
	case "wq_a":
		return func(i int) (int, float32) { return wanted + i, 1 }
	case "wkv":
		return func(d int) (int, float32) { return codeWindow[d%features], sign(d) }
	case "wq_b":
		return func(n int) (int, float32) { return n % features, sign(n % cache.D) }
	case "wo_a":
		return func(j int) (int, float32) {
			d := output(j) // a head is a group of its own
			return d, 1
		}
	case "wo_b":
		return func(j int) (int, float32) {
			if j >= outputs {
				return 0, 0
			}
			return j, 1
		}
	case "compressor.wkv":
		return kept(shape[0], cache.D, cache.D)
	case "compressor.wgate", "indexer.compressor.wgate":
		return func(int) (int, float32) { return salient, 1 }
	case "indexer.compressor.wkv": // nothing that is turned: entries of equal content have equal keys
		return kept(shape[0], cache.IndexDim, cache.IndexDim-turned)
	case "indexer.wk": // of a latent, which has content in the order of its number
		return func(d int) (int, float32) {
			if d >= cache.IndexDim-turned {
				return 0, 0
			}
			return d, 1
		}
	case "indexer.wq_b":
		return func(n int) (int, float32) {
			if n%cache.IndexDim >= cache.IndexDim-turned {
				return 0, 0
			}
			return n % cache.IndexDim, sign(n % cache.IndexDim)
		}
	case "indexer.weights_proj":
		return func(h int) (int, float32) { return constant, float32(1+h%3) / 2 }
	}
	return nil
}

// kept returns a compressor's wkv: content in some of dim numbers of each channel.
func kept(channels, dim, some int) func(row int) (column int, value float32) {
	return func(c int) (int, float32) {
		d, by := c%dim, codeOwn
		if channels > dim && c < dim {
			by = codeBefore
		}
		if d >= some {
			return 0, 0
		}
		return by[d%features], sign(d)
	}
}
