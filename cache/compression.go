package cache

import "fmt"

// Compression says how tokens become entries of a compressed cache: every Ratio
// tokens give one entry of Dim numbers. With ratio 4 neighbouring windows overlap:
// an entry pools the last 8 tokens, the older four by the first half of their
// channels and the newer four by the second half. With ratio 128 windows do not
// overlap.
//
// Source: class Compressor of DeepSeek-V4's inference/model.py; vLLM
// models/deepseek_v4/compressor.py.
type Compression struct {
	Dim   int // numbers of an entry
	Ratio int // tokens per entry
}

// The compressors of the model.
var (
	C4Main   = Compression{Dim: D, Ratio: 4}        // K entries of C4A layers
	C4Index  = Compression{Dim: IndexDim, Ratio: 4} // indexer keys of C4A layers
	C128Main = Compression{Dim: D, Ratio: 128}      // K entries of C128A layers
)

// Overlap tells whether an entry's window reaches into the one before.
func (c Compression) Overlap() bool { return c.Ratio == 4 }

// Channels is how many gated values a token brings: Dim, or 2*Dim with overlap. A
// token's state is that many kv values and as many scores.
func (c Compression) Channels() int {
	if c.Overlap() {
		return 2 * c.Dim
	}
	return c.Dim
}

// Window is the number of tokens that an entry pools. A token's state is needed
// until the position Window-1 after it was compressed.
func (c Compression) Window() int { return c.Channels() / max(c.Dim, 1) * c.Ratio }

func (c Compression) check(op string) error {
	if c != C4Main && c != C4Index && c != C128Main {
		return pkg.Wrong(op, "Compression", fmt.Sprintf("%d numbers from %d tokens", c.Dim, c.Ratio), "one of C4Main, C4Index and C128Main")
	}
	return nil
}
