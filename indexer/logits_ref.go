package indexer

import (
	"encoding/binary"
	"math"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/numfmt"
)

// LogitsHost holds the operands of LogitsArgs in host memory, in the same shapes, for LogitsRef.
type LogitsHost struct {
	Heads       int
	Q           []byte    // [T, H, 128] E4M3, or [T, H, 64] with two E2M1 codes a byte
	QScale      []byte    // [T, H, 4] UE8M0, for MXFP4
	Weights     []float32 // [T, H]
	Pool        []byte    // pages of keys
	Layout      cache.IndexKeyLayout
	BlockTable  []int32 // [R, TableWidth]
	TableWidth  int
	TokenToReq  []int32 // [T]
	Lens        []int32 // [T]
	Blocks      []int32 // [T, BlocksWidth] candidate blocks, nil: columns are all entries
	BlocksWidth int
	Block       int // entries of a block
	First       int
	Width       int
}

// LogitsRef is the definition of Logits: for every token t and every entry n with
// First <= n < First+Width and n < Lens[t], it writes to out[t*Width + n-First]
//
//	FP8    s_k[n] * sum_h relu(sum_d q[t][h][d] * k[n][d]) * weights[t][h]
//	MXFP4  sum_h relu(dot[h]) * weights[t][h],  dot[h] =
//	       sum_b 2^(sq[t][h][b]-127) * 2^(sk[n][b]-127) * sum_{d in b} q[t][h][d] * k[n][d]
//
// in float64, rounded once at the end, and nothing else. With Blocks the key of n is that of entry
// Blocks[t][n/8]*8 + n%8; a negative block has no entries. An entry whose page is not there (beyond
// the table, negative, beyond the pool, or of a request that the table does not have) gets -Inf.
//
// Errors: vk.ErrArgument for slices that do not have the sizes that follow from each
// other.
func LogitsRef(x LogitsHost, out []float32) error {
	t, err := x.check(out)
	if err != nil {
		return err
	}
	pages := len(x.Pool) / x.Layout.Stride
	q, k := x.queries(), make([]float64, cache.IndexDim)
	for i := range t {
		for n := x.First; n < min(x.First+x.Width, int(x.Lens[i])); n++ {
			logit := math.Inf(-1)
			if slot, ok := x.slot(int(x.TokenToReq[i]), x.entry(i, n), pages); ok {
				scale := x.key(slot, k)
				var sum float64
				for h := range x.Heads {
					var dot float64
					for d, v := range q[(i*x.Heads+h)*cache.IndexDim:][:cache.IndexDim] {
						dot += v * k[d]
					}
					sum += max(dot, 0) * float64(x.Weights[i*x.Heads+h])
				}
				logit = sum * scale
			}
			out[i*x.Width+n-x.First] = float32(logit)
		}
	}
	return nil
}

// entry is the entry of column n of token t, -1 for none.
func (x LogitsHost) entry(t, n int) int {
	if x.Blocks == nil {
		return n
	}
	block := int(x.Blocks[t*x.BlocksWidth+n/x.Block])
	return max(block*x.Block+n%x.Block, -1)
}

// slot returns the slot of entry n of request r, and whether it is in the pool.
func (x LogitsHost) slot(r, n, pages int) (int64, bool) {
	page, column := x.Layout.Page, n/x.Layout.Page
	if n < 0 || r < 0 || r >= len(x.BlockTable)/x.TableWidth || column >= x.TableWidth {
		return 0, false
	}
	block := int(x.BlockTable[r*x.TableWidth+column])
	return int64(block)*int64(page) + int64(n%page), block >= 0 && block < pages
}

// key decodes the numbers of a slot, with their block scales, and returns what is to
// multiply their sum over heads.
func (x LogitsHost) key(slot int64, k []float64) (scale float64) {
	scales := x.Pool[x.Layout.ScaleOffset(slot):][:cache.IndexScaleBytes]
	decode(x.Layout.Format, x.Pool[x.Layout.RowOffset(slot):], scales, k)
	if x.Layout.Format == cache.IndexKeyMXFP4 {
		return 1
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(scales)))
}

// queries decodes the query heads, [T, H, 128].
func (x LogitsHost) queries() []float64 {
	rows, bytes := len(x.Weights), x.Layout.Format.RowBytes()
	q := make([]float64, rows*cache.IndexDim)
	for r := range rows {
		var scales []byte
		if x.Layout.Format == cache.IndexKeyMXFP4 {
			scales = x.QScale[r*Blocks:]
		}
		decode(x.Layout.Format, x.Q[r*bytes:], scales, q[r*cache.IndexDim:][:cache.IndexDim])
	}
	return q
}

// decode turns a row of codes into numbers; the scales are those of MXFP4 blocks.
func decode(format cache.IndexKeyFormat, codes, scales []byte, v []float64) {
	for d := range v {
		if format == cache.IndexKeyFP8 {
			v[d] = float64(numfmt.E4M3Decode(codes[d]))
			continue
		}
		even, odd := numfmt.E2M1Unpack(codes[d/2])
		code := even
		if d%2 == 1 {
			code = odd
		}
		v[d] = float64(numfmt.E2M1Decode(code)) * float64(numfmt.UE8M0Scale(scales[d/(cache.IndexDim/Blocks)]))
	}
}

// check proves that the slices fit each other and returns the number of tokens.
func (x LogitsHost) check(out []float32) (tokens int, err error) {
	const op = "logits ref"
	if _, err := cache.NewIndexKeyLayout(x.Layout.Format, x.Layout.Page, x.Layout.Stride); err != nil {
		return 0, pkg.Wrong(op, "Layout", x.Layout, "a legal layout: %v", err)
	}
	if x.Heads < 1 || x.TableWidth < 1 || x.First < 0 || x.Width < 0 || x.Layout.Stride == 0 {
		return 0, pkg.Wrong(op, "sizes", []int{x.Heads, x.TableWidth, x.First, x.Width}, "positive heads and table width")
	}
	t := len(x.Lens)
	rows := t * x.Heads
	qScale, blocks := 0, 0
	if x.Blocks != nil {
		blocks = t * x.BlocksWidth
		if err := checkBlock(op, "Block", x.Block); err != nil {
			return 0, err
		}
		if x.First+x.Width > x.BlocksWidth*x.Block {
			return 0, pkg.Wrong(op, "Width", x.First+x.Width, "at most %d, the entries of blocks", x.BlocksWidth*x.Block)
		}
	}
	if x.Layout.Format == cache.IndexKeyMXFP4 {
		qScale = rows * Blocks
	}
	for _, s := range []struct {
		name      string
		got, want int
	}{
		{"Q", len(x.Q), rows * x.Layout.Format.RowBytes()}, {"QScale", len(x.QScale), qScale}, {"Weights", len(x.Weights), rows},
		{"Pool", len(x.Pool) % x.Layout.Stride, 0}, {"BlockTable", len(x.BlockTable) % x.TableWidth, 0},
		{"TokenToReq", len(x.TokenToReq), t}, {"out", len(out), t * x.Width}, {"Blocks", len(x.Blocks), blocks},
	} {
		if s.got != s.want {
			return 0, pkg.Wrong(op, s.name, s.got, "%d elements (a remainder of 0 for pages and table rows)", s.want)
		}
	}
	return t, nil
}
