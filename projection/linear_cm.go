package projection

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// matrixTiles is proj_linear_cm: tiles of up to 128 tokens x 128 rows that go through shared memory
// to matrices. It covers any number of tokens. Whole tiles are proj_linear_whole's.
type matrixTiles struct {
	*linearLayer
	exact bool         // shapes are taken as they are, for products of any number
	tiles []matrixTile // most tokens first
}

// matrixTile is a tiling with its kernels.
type matrixTile struct {
	linearTiling
	kernel *opkit.Later
	whole  *matrixTile // of proj_linear_whole; nil where tiles are not whole
}

// of is the tile for T tokens: one of proj_linear_whole has no room for tokens beyond the last.
func (t matrixTile) of(T int) matrixTile {
	if t.whole != nil && T >= t.bm {
		return *t.whole
	}
	return t
}

// linearTiling describes the division of work in proj_linear_cm; the names are those of the shader.
// All sizes are powers of two.
type linearTiling struct {
	m, n, k    int // shape of a matrix product
	bm, bn, bk int // tokens, rows and numbers of a step
	wm, wn     int // of these a subgroup sums
	subgroup   int // invocations of a subgroup
	rows       int // ROWS, how numbers lie in shared memory

	codes  bool // the elements are codes, of E4M3: linear_codes.go
	summed int  // then: numbers of a row with one scale, which are summed apart

	pairs  bool // numbers come for two steps at a time: proj_linear_whole
	blocks int  // then: a part of K is a multiple of these numbers of a row, format.span
}

func (t linearTiling) subgroups() int { return t.bm / t.wm * (t.bn / t.wn) }

func (t linearTiling) threads() int { return t.subgroup * t.subgroups() }

// span is the step of K that parts of it are whole multiples of.
func (t linearTiling) span() int {
	switch {
	case t.blocks > 0:
		return t.blocks
	case t.pairs:
		return 2 * t.bk
	}
	return t.bk
}

// refBytes is the size of ref_s.
const refBytes = 16

// sharedBytes is the sum of the shared arrays, ref_s included.
func (t linearTiling) sharedBytes() int {
	more, tile := refBytes, (t.bm+t.bn)*(t.elementBytes()*t.bk+16)
	if t.codes {
		more, tile = 0, tile+4*t.bm*t.bk/t.summed
	}
	return max(tile, t.subgroups()*t.m*(4*t.wn+16)) + more
}

// registers estimates the 32-bit registers of an invocation on a device: sums, fragments, what is
// on its way from memory, and the rest.
func (t linearTiling) registers(caps *vk.Caps, device *tuning.Device) int {
	copies, rest := device.OperandCopies(caps), device.OtherRegisters
	if t.codes {
		return t.codeRegisters(copies) + rest
	}
	sums := t.wm * t.wn / t.subgroup
	fragments := copies * (t.wm + t.n) * t.k / 2 / t.subgroup
	each := (t.bm + t.bn) * t.bk / 8 / t.threads() // units of 8 numbers: 16 bytes at most, and where they come from
	if t.pairs {                                   // two steps on their way or held, and a fragment more
		return sums + fragments + copies*t.n*t.k/2/t.subgroup + 8*each + rest
	}
	return sums + fragments + 6*each + rest
}

// constants are the specialisation constants after the formats.
func (t linearTiling) constants() []uint32 {
	words := opkit.Constants(t.threads(), t.subgroup, t.m, t.n, t.k, t.bm, t.bn, t.bk, t.wm, t.wn)
	if t.rows != 0 {
		words = append(words, uint32(t.rows))
	}
	return words
}

// divides tells whether the parts make up the whole: matrices a subgroup's sums,
// subgroups a tile, invocations its units.
func (t linearTiling) divides() bool {
	if t.wm < t.m || t.wn < t.n || t.bk < t.k || t.bm < t.wm || t.bn < t.wn {
		return false
	}
	lines := t.threads() / (t.bk / t.each())
	return lines >= 1 && t.bm%lines == 0 && t.bn%lines == 0
}

// fits tells whether a device has the memory, invocations and registers.
func (t linearTiling) fits(caps *vk.Caps, device *tuning.Device) bool {
	return t.divides() && t.threads() <= int(caps.MaxWorkgroupInvocations) && t.sharedBytes() <= int(caps.SharedMemory) &&
		t.registers(caps, device) <= device.MatrixRegisters(t.subgroup, t.threads())
}

// fitTiling adapts a shape of tiles to a shape of product and a device: a subgroup
// takes less of a tile until it has the registers.
func fitTiling(caps *vk.Caps, device *tuning.Device, s vk.CoopMatShape, x tuning.LinearTile) (linearTiling, bool) {
	t := linearTiling{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(caps.MinSubgroupSize),
		bm: x.Tokens, bn: x.Rows, bk: x.Step, wm: x.SubgroupTokens, wn: x.SubgroupRows}
	for _, v := range []int{t.m, t.n, t.k, t.subgroup} {
		if v < 8 || bits.OnesCount(uint(v)) != 1 {
			return t, false
		}
	}
	for {
		t.bm, t.wm = max(t.bm, t.m), max(t.wm, t.m)
		t.wn, t.bk = max(t.wn, t.n), max(t.bk, t.k)
		if t.fits(caps, device) {
			return t, true
		}
		switch {
		case t.wm > t.m && t.wm >= t.wn:
			t.wm /= 2
		case t.wn > t.n:
			t.wn /= 2
		case t.wm > t.m:
			t.wm /= 2
		default:
			return t, false
		}
	}
}

// find keeps of every shape of tiles what the device can hold. Of products of 8 numbers, steps are
// half as long, with as much code.
//
// Errors: vk.ErrMissingFeature when that is nothing.
func (k *matrixTiles) find(profile *tuning.Profile, caps *vk.Caps, variant string) error {
	k.tiles = nil
	var why error
	for _, x := range profile.Linear.Tiles.Shapes {
		t, err := opkit.FitMatrix(caps, matrixElement[variant], func(s vk.CoopMatShape) (linearTiling, bool) {
			x := x
			if !k.exact {
				x.Step = x.Step * min(int(s.K), 16) / 16
			}
			return fitTiling(caps, &profile.Device, s, x)
		})
		if errors.Is(err, vk.ErrMissingFeature) {
			why = err
			continue
		}
		if err != nil {
			return err
		}
		k.tiles = append(k.tiles, matrixTile{linearTiling: t})
	}
	if len(k.tiles) == 0 {
		return fmt.Errorf("no tiles: %w", why)
	}
	return nil
}

// narrowRows returns the rows of the smallest tiles.
func (l *linearLayer) narrowRows() int {
	shapes := l.tune.Tiles.Shapes
	return shapes[len(shapes)-1].Rows
}

func (k *matrixTiles) fit(l *linearLayer, _ kernelKind) (bool, error) {
	k.linearLayer = l
	if l.cfg.Invariant {
		return k.fitInvariant()
	}
	for i := range k.tiles {
		t, err := &k.tiles[i], error(nil)
		var codes bool
		if t.linearTiling, codes, err = l.codesTile(t.linearTiling); codes || err != nil {
			if err != nil {
				return false, err
			}
			continue
		}
		t.whole = l.wholeTile(t.linearTiling)
		if t.rows, err = l.findRows(t.linearTiling); err != nil {
			return false, err
		}
	}
	return true, nil
}

// fitInvariant keeps the tiles of products as long as the first one's, where no kernel for fewer
// tokens has an order of sums.
func (k *matrixTiles) fitInvariant() (bool, error) {
	if k.runs("proj_linear_tokens8to32") {
		if _, err := k.order(); !errors.Is(err, vk.ErrMissingFeature) {
			return false, err
		}
	}
	long := k.tiles[0].k
	k.tiles = slices.DeleteFunc(k.tiles, func(t matrixTile) bool { return t.k != long })
	return true, nil
}

func (k *matrixTiles) reach() int { return math.MaxInt }

func (k *matrixTiles) covers(int) bool { return true }

// build keeps the tiles that from tokens or more can need.
func (k *matrixTiles) build(from int) {
	most, small := k.cfg.MaxTokens, min(from, k.tune.Tiles.SmallTokens)
	var kept []matrixTile
	for i, t := range k.tiles {
		tooSmall := t.bm < small && i > 0
		tooLarge := most > 0 && t.bm >= 2*most && i < len(k.tiles)-1 && k.tiles[i+1].bm >= small
		if tooSmall || tooLarge {
			continue
		}
		for _, x := range []*matrixTile{&t, t.whole} {
			if x == nil {
				continue
			}
			stem := "proj_linear"
			if x.pairs {
				stem = "proj_linear_whole"
			}
			spec := k.spec(stem, x.constants()...)
			if x.codes {
				spec.Stem, spec.Variant = codesStem, opkit.CM
			}
			spec.Subgroup, spec.Divisible = uint32(x.subgroup), true // launches of thousands of tokens
			x.kernel = k.later(spec)
		}
		kept = append(kept, t)
	}
	k.tiles = kept
}

// plan cuts K into parts for all tiles, where they are few, or for the last ones.
func (k *matrixTiles) plan(T, scratch int) linearPlan {
	t := k.tile(T, scratch).of(T)
	p := linearPlan{kernel: t.kernel, step: t.span()}
	p.cut(k.cfg.K, k.partsOf(t, T, scratch))
	p.grid = [3]uint32{uint32(opkit.CeilDiv(T, t.bm)), uint32(k.rowTiles(t.bn)), uint32(k.cfg.Groups * p.splits)}
	if whole, parts := k.tail(t, T, scratch); parts > 1 {
		p.cut(k.cfg.K, parts)
		p.whole, p.rows = whole, t.bn
		p.grid[1], p.grid[2] = p.grid[1]-uint32(whole/t.bn), uint32(p.splits)
	}
	return p
}

// fill returns the number of workgroups of tile t that fill the device.
func (k *matrixTiles) fill(t matrixTile) int {
	if t.bm <= k.tune.Tiles.SmallTokens {
		return k.tune.SmallFill * k.cfg.Workgroups
	}
	return k.cfg.Workgroups
}

// workgroups returns the number of tiles t that T tokens make.
func (k *matrixTiles) workgroups(t matrixTile, T int) int {
	return opkit.CeilDiv(T, t.bm) * k.rowTiles(t.bn) * k.cfg.Groups
}

// besideFills tells whether whole tiles of this layer and those beside it leave little of the
// device idle. Then K is not cut: one's last workgroups leave room for the next one's first.
func (k *matrixTiles) besideFills(t matrixTile, T int) bool {
	if k.cfg.Beside == 0 || t.bm <= k.tune.Tiles.SmallTokens {
		return false
	}
	all, fill := opkit.CeilDiv(T, t.bm)*opkit.CeilDiv(k.rows()+k.cfg.Beside, t.bn), k.fill(t)
	return opkit.RoundUp(all, fill)-all <= all/tuning.BesideIdle
}

// tile returns the largest tile that T tokens fill by more than half and that yields enough
// workgroups, with K cut into parts. If there is none, it is the smallest that holds all tokens, or
// 64 of them: smaller ones would decode the weights more often. (128 tiles of 128 x 128 in two
// parts each, of a device with room for 264, take 0.55 of the time of 512 tiles of 64 x 64.)
func (k *matrixTiles) tile(T, scratch int) matrixTile {
	p := &k.tune.Tiles
	last := k.tiles[len(k.tiles)-1]
	for i := len(k.tiles) - 1; i >= 0 && last.bm < min(T, p.SmallTokens); i-- {
		last = k.tiles[i]
	}
	for _, t := range k.tiles {
		enough := k.besideFills(t, T) || k.workgroups(t, T)*k.partsOf(t, T, scratch) >= k.fill(t)/tuning.EnoughFill
		if t.bm > last.bm && t.bm < 2*T && enough {
			return t
		}
	}
	return last
}

// partsOf returns the number of parts of K: as many as fill the device. Arithmetic limits whole
// tiles, not weights, so their parts are weighed by partsCost.
func (k *matrixTiles) partsOf(t matrixTile, T, scratch int) int {
	p := &k.tune.Parts
	tiles, fill := k.workgroups(t, T), k.fill(t)
	if k.besideFills(t, T) {
		return 1
	}
	if !t.of(T).pairs {
		return k.partsFor(tiles, fill, opkit.CeilDiv(k.cfg.K, t.bk), T, scratch)
	}
	least, best := k.cfg.K, 1
	for parts := 2; parts <= p.Most && parts*tiles <= fill && p.LeastSteps*parts*t.bk <= k.cfg.K && parts*T*k.rows() <= scratch; parts++ {
		if cost := k.partsCost(tiles, fill, parts); cost < least {
			least, best = cost, parts
		}
	}
	return best
}

// tail returns the number of rows to compute whole, and the parts that K is cut into for the
// others, so that the last tiles do not leave most of the device idle: 384 tiles where 264 fill the
// device take as long as 528, but 256 whole ones and 256 halves take as long as 396. No parts, or
// 1, is better where that gains too little.
func (k *matrixTiles) tail(t matrixTile, T, scratch int) (whole, parts int) {
	p, gain := &k.tune.Parts, tuning.PartsGain
	fill, across, down := k.fill(t), opkit.CeilDiv(T, t.bm), k.rowTiles(t.bn)
	if k.cfg.Groups > 1 || across*down <= fill || k.cfg.Invariant || k.besideFills(t, T) {
		return 0, 1
	}
	least := opkit.CeilDiv(across*down, fill) * k.cfg.K * (gain - 1) / gain
	parts = 1
	for rest := 1; rest <= down && rest*across <= 2*fill; rest++ {
		head := opkit.CeilDiv(across*(down-rest), fill) * k.cfg.K
		for n := 2; n <= p.Most && p.LeastSteps*n*t.bk <= k.cfg.K; n++ {
			if n*T*(k.cfg.N-(down-rest)*t.bn) > scratch {
				break
			}
			if cost := head + k.partsCost(rest*across, fill, n); cost < least {
				least, whole, parts = cost, (down-rest)*t.bn, n
			}
		}
	}
	return whole, parts
}
