package projection

import "github.com/vkmla/vkmla/internal/opkit"

// What a part of K costs beside its products, in numbers of K that a tile is multiplied
// by meanwhile: an H100 multiplies 300 TFLOP/s and writes and reads f32 at 2.5 TB/s.
const (
	tailPart   = 480 // of each part of a tile
	tailLaunch = 110 // of each tile there is room for: the second launch, 3 us
)

// partsCost is how long tiles in so many parts of K take, with their sums, in numbers of K.
func partsCost(tiles, fill, k, parts int) int {
	return opkit.CeilDiv(parts*tiles, fill)*k/parts + opkit.CeilDiv(parts*tiles*tailPart, fill) + tailLaunch
}

// tail is how many rows to compute whole, and into how many parts to cut K for the
// others, so that the last tiles do not leave most of the device idle: 384 tiles where
// 264 fill the device take as long as 528, but 256 whole ones and 256 halves take as
// long as 396. No parts, or 1, is better where that gains less than a sixteenth.
func (o *Linear) tail(m linearTiling, t, scratch int) (whole, parts int) {
	fill, k := m.fill(o.cfg.Workgroups), o.cfg.K
	across, down := opkit.CeilDiv(t, m.bm), o.rowTiles(m.bn)
	if o.cfg.Groups > 1 || across*down <= fill {
		return 0, 1
	}
	least := opkit.CeilDiv(across*down, fill) * k * 15 / 16
	parts = 1
	for rest := 1; rest <= down && rest*across <= 2*fill; rest++ {
		head := opkit.CeilDiv(across*(down-rest), fill) * k
		for p := 2; p <= maxSplits && 4*p*m.bk <= k; p++ {
			if p*t*(o.cfg.N-(down-rest)*m.bn) > scratch {
				break
			}
			if cost := head + partsCost(rest*across, fill, k, p); cost < least {
				least, whole, parts = cost, (down-rest)*m.bn, p
			}
		}
	}
	return whole, parts
}
