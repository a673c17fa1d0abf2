package cache

import "fmt"

// Compression says how tokens become entries of a compressed cache: every Ratio tokens give one
// entry of Dim numbers, a softmax-weighted sum over the states of a window of tokens.
//
// Without Overlap the window is the entry's own Ratio tokens. With Overlap it is the 2*Ratio
// tokens up to the entry's last: a token's state then has two halves of channels, the first for
// the entry after its own, the second for its own.
//
// Source: class Compressor of DeepSeek-V4's inference/model.py; vLLM
// models/deepseek_v4/compressor.py.
type Compression struct {
	Dim     int  // numbers of an entry: D (an entry of a KVCache) or IndexDim (of an IndexKeyCache)
	Ratio   int  // tokens of an entry, 1..MaxRatio
	Overlap bool // windows overlap

	// Latent rounds the pooled value to bf16 before the norm and the normed value, the latent,
	// before it is rotated. An entry's bytes then follow from its latent alone.
	Latent bool
	// Ungated takes the row of the token that ends a group for the pooled value: there are no
	// scores and no states. It needs Latent and excludes Overlap.
	Ungated bool
}

// MaxRatio is the largest Compression.Ratio: places in the longest window then fit the shared
// memory that Vulkan guarantees.
const MaxRatio = 1024

// Channels returns the number of gated values of a token: Dim, or 2*Dim with Overlap. A token's
// state is that many kv values and as many scores.
func (c Compression) Channels() int { return c.halves() * c.Dim }

// Columns returns the number of numbers that a compressor takes of a token: the kv values and the
// scores of its channels, or Dim with Ungated.
func (c Compression) Columns() int {
	if c.Ungated {
		return c.Dim
	}
	return 2 * c.Channels()
}

// Window is the number of tokens that an entry pools: Ratio, or 2*Ratio with Overlap. A token's
// state is needed until the position Window-1 after it was compressed.
func (c Compression) Window() int { return c.halves() * c.Ratio }

func (c Compression) halves() int {
	if c.Overlap {
		return 2
	}
	return 1
}

// keys tells whether entries are indexer keys.
func (c Compression) keys() bool { return c.Dim == IndexDim }

func (c Compression) check(op string) error {
	if c.Dim != D && c.Dim != IndexDim {
		return pkg.Wrong(op, "Compression.Dim", c.Dim, "%d or %d", D, IndexDim)
	}
	if c.Ratio < 1 || c.Ratio > MaxRatio {
		return pkg.Wrong(op, "Compression.Ratio", fmt.Sprintf("%d tokens", c.Ratio), "1..%d", MaxRatio)
	}
	if c.Ungated && (!c.Latent || c.Overlap) {
		return pkg.Wrong(op, "Compression.Ungated", c, "with Latent and without Overlap")
	}
	return nil
}
