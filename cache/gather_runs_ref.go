package cache

import (
	"fmt"

	"github.com/vkmla/vkmla/internal/numfmt"
)

// halvesRef turns bf16 numbers into f16 in place, as GatherRunsConfig.Halves has it: to nearest,
// ties to even, those beyond +-65504 to that, and what becomes 0 to +0. A NaN stays one.
func halvesRef(v []uint16) {
	for i, b := range v {
		x := numfmt.BF16Decode(b)
		if x == x {
			x = min(max(x, -65504), 65504)
		}
		if v[i] = numfmt.F16Encode(x); v[i] == 0x8000 {
			v[i] = 0
		} else if x != x {
			v[i] = b&0x8000 | 0x7E00
		}
	}
}

// gatherRunsRef is the definition of GatherRuns on host memory: out [S, 512] bf16, pool the bytes
// of pages of layout l, runs the runs of one set with the one that ends them, each row, of, first,
// list; table [R, width], lists [T, k]. Its error is a *vk.ArgumentError; then nothing was written.
func gatherRunsRef(out []uint16, pool []byte, l Layout, runs [][4]int32, table []int32, width int, lists []int32, k int) error {
	const op = "gather runs reference"
	if err := l.check(op); err != nil {
		return err
	}
	if len(out)%D != 0 || len(runs) < 1 {
		return pkg.Wrong(op, "out, runs", fmt.Sprintf("%d values, %d runs", len(out), len(runs)), "rows of %d, at least one run", D)
	}
	pages := len(pool) / l.Stride
	for n, run := range runs[:len(runs)-1] {
		for row := run[0]; row < runs[n+1][0]; row++ {
			of, at, slot := int(run[1]), int(run[2]+row-run[0]), -1
			switch {
			case run[3] != 0:
				if at >= 0 && at < k && of >= 0 && of*k+at < len(lists) {
					slot = int(lists[of*k+at])
				}
			case at >= 0 && at/l.Page < width && of >= 0 && of*width < len(table):
				if page := int(table[of*width+at/l.Page]); page >= 0 && page < pages {
					slot = page*l.Page + at%l.Page
				}
			}
			if int(row) < 0 || int(row) >= len(out)/D {
				continue
			}
			to := out[int(row)*D:][:D]
			if slot < 0 || slot >= pages*l.Page {
				clear(to)
				continue
			}
			dequantise(to, pool, l, int64(slot))
		}
	}
	return nil
}
