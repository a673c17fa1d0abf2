package cache

import "fmt"

// SlotMappingRef is the definition of SlotMapping on host memory: slots [T],
// queryStart [R+1] ascending from 0, seqLens [R], table [R, width]. Its error is a
// *vk.ArgumentError; then nothing was written.
func SlotMappingRef(slots []int64, queryStart, seqLens, table []int32, width, page, ratio int) error {
	const op = "slot mapping reference"
	requests := len(seqLens)
	switch {
	case page < 1 || ratio < 1:
		return pkg.Wrong(op, "page, ratio", fmt.Sprintf("%d, %d", page, ratio), "at least 1")
	case len(queryStart) != requests+1:
		return pkg.Wrong(op, "queryStart", len(queryStart), "%v", requests+1)
	case width < 0 || len(table) != requests*width:
		return pkg.Wrong(op, "table", fmt.Sprintf("%d entries", len(table)), "[%d, %d]", requests, width)
	}
	for i := range slots {
		slots[i] = -1
	}
	for r := range requests {
		first, end := int(queryStart[r]), int(queryStart[r+1])
		for i := max(first, 0); i < min(end, len(slots)); i++ {
			p := int(seqLens[r]) - (end - first) + i - first
			if p < 0 || (p+1)%ratio != 0 {
				continue
			}
			q := p / ratio
			if q/page >= width || table[r*width+q/page] < 0 {
				continue
			}
			slots[i] = int64(table[r*width+q/page])*int64(page) + int64(q%page)
		}
	}
	return nil
}
