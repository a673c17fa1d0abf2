package attention

import (
	"math/bits"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// matrixTiling describes the division of work in a kernel with cooperative matrices. The names are
// those of shaders/lib/cm_mla.glsl.
type matrixTiling struct {
	m, n, k   int // shape of a matrix product
	heads     int // HG, heads of a workgroup
	tile      int // TILE, rows of cache at a time
	subgroup  int // invocations of a subgroup
	subgroups int
	kSplit    int // KSPLIT, parts of the 512 dims in the score product
}

// ringTiles is RING of shaders/lib/cm_mla.glsl.
const ringTiles = 4

// maxKSplit is the most parts of the dims in the score product of attn_decode_cm, and rowsAs is
// MatrixRows where no profile says it. Tests have others, and whatever registers these take.
var maxKSplit, rowsAs = cache.D, 0

func (t matrixTiling) threads() int { return t.subgroup * t.subgroups }

// sharedBytes is the sum of the shared arrays, for a kernel that holds `rows` rows of cache:
// two tiles in attn_prefill_cm, one in attn_decode_cm.
func (t matrixTiling) sharedBytes(rows int) int {
	scores := t.kSplit * t.heads * (4*t.tile + 16)
	weights := t.heads * (2*t.tile + 16)
	return 1040*rows + scores + weights + 4*t.heads + ringTiles*t.tile*20 + 4
}

// constants are the specialisation constants after HG and TILE.
func (t matrixTiling) constants() []uint32 {
	return opkit.Constants(t.threads(), t.subgroup, t.m, t.n, t.k, t.kSplit)
}

// tiling returns the plan's view of t, with the cost of a tile.
func (t matrixTiling) tiling(cost float64) tiling {
	return tiling{heads: t.heads, tile: t.tile, constants: t.constants(), subgroup: uint32(t.subgroup), cost: cost}
}

// normsQueries reports whether attn_decode_cm norms queries with this tiling: all of them come
// in at once, an invocation has two units of 8 numbers of one head or of two, and their sums
// find room where scores will be. See shaders/lib/cm_q_norm.glsl.
func (t matrixTiling) normsQueries() bool {
	units, threads := t.heads*cache.D/8, t.threads()
	return t.heads <= t.tile && (units == 2*threads || units == 4*threads) && units/2 <= 4*t.kSplit*t.heads*(t.tile/4+1)
}

// matrixFit finds tilings for a device.
type matrixFit struct {
	caps *vk.Caps
	tune *tuning.Profile
}

// registers estimates the 32-bit registers of an invocation that holds `queries`
// registers of its workgroup's queries: these, its share of the output in f32, a column of weight
// fragments, and the rest.
func (f matrixFit) registers(t matrixTiling, queries int) int {
	if maxKSplit < cache.D || rowsAs > 0 {
		return 0
	}
	out := t.heads * cache.D / t.threads()
	weights := t.heads * t.k / 2 / t.subgroup
	other := f.tune.Device.OtherRegisters
	if t.subgroup < 32 {
		other = f.tune.Attention.OtherNarrow
	}
	return out + f.copies()*(queries+weights) + other
}

// copies counts the copies that the device holds of each element of a product's operands.
func (f matrixFit) copies() int { return f.tune.Device.OperandCopies(f.caps) }

// within reports whether a workgroup with `shared` bytes of shared memory and `registers` registers
// an invocation is within the device's limits.
func (f matrixFit) within(t matrixTiling, shared, registers int) bool {
	return t.threads() <= int(f.caps.MaxWorkgroupInvocations) && shared <= int(f.caps.SharedMemory) &&
		registers <= f.tune.Device.MatrixRegisters(t.subgroup, t.threads())
}

// start is the tiling of a shape with one matrix of heads. It is false for sizes that the
// kernels do not know.
func (f matrixFit) start(s vk.CoopMatShape) (matrixTiling, bool) {
	t := matrixTiling{m: int(s.M), n: int(s.N), k: int(s.K), subgroup: int(f.caps.MinSubgroupSize)}
	for _, v := range []int{t.m, t.n, t.k, t.subgroup} {
		if v < 8 || bits.OnesCount(uint(v)) != 1 {
			return t, false
		}
	}
	t.heads, t.tile = t.m, max(t.m, t.n, t.k)
	return t, true
}

// prefill completes a tiling for attn_prefill_cm.
func (f matrixFit) prefill(t matrixTiling) (matrixTiling, bool) {
	for _, t.subgroups = range f.tune.Attention.Subgroups {
		t.kSplit = max(1, t.subgroups/(t.heads/t.m))
		queries := t.heads * cache.D / 2 / t.threads()
		if t.kSplit*t.k <= cache.D && t.subgroups*t.n <= cache.D && t.threads()%t.tile == 0 && t.threads() >= ringTiles*t.tile &&
			f.within(t, t.sharedBytes(2*t.tile), f.registers(t, queries)) {
			return t, true
		}
	}
	return t, false
}

// decode completes a tiling for attn_decode_cm with the first of the profile's tiles that has room.
func (f matrixFit) decode(t matrixTiling) (matrixTiling, bool) {
	for _, times := range f.tune.Attention.DecodeTiles {
		x := t
		x.tile *= times
		if x, ok := f.decodeFew(x); ok {
			return x, true
		}
	}
	return t, false
}

// decodeFew is decode with a tile as it is. A matrix has 16 columns at most: more of V4.1's rows
// are no neighbours, as CM_POSITION of shaders/lib/cm_locate.glsl says. Subgroups that have no
// heads left to divide divide its rows, and only then the dims, as far as there is shared memory
// for their sums. The rest has no part in the score product. Subgroups that divide rows hold the
// same queries, so where a device holds them twice they divide the dims first: RADV spills 38
// registers on navi31 with 32 heads if they do not.
func (f matrixFit) decodeFew(t matrixTiling) (matrixTiling, bool) {
	if t.tile < t.n {
		return t, false
	}
	for _, t.subgroups = range f.tune.Attention.DecodeSubgroups {
		heads := min(t.subgroups, t.heads/t.m)
		columns := min(t.subgroups/heads, t.tile/t.n)
		if f.copies() > 1 {
			columns = 1
		}
		lanes := t.rowLanes()
		if t.n > 16 || t.subgroups*t.n > cache.D || lanes < 4 || 16%lanes != 0 || t.threads()%64 != 0 || t.threads() < ringTiles*t.tile {
			continue
		}
		for t.kSplit = min(maxKSplit, t.subgroups/heads/columns); t.kSplit > 0; t.kSplit /= 2 {
			queries := t.heads * cache.D / 2 / (heads * t.kSplit * t.subgroup)
			if t.kSplit*t.k <= cache.D && f.within(t, t.sharedBytes(t.tile), f.registers(t, queries)) {
				return t, true
			}
		}
	}
	return t, false
}

// rowLanes are the invocations that bring in a row together; see shaders/lib/cm_lanes_row.glsl.
func (t matrixTiling) rowLanes() int { return t.threads() / t.tile }

// all lists the tilings for the largest shape of products of an element type, "f16" or "bf16",
// that suits: the one with the most heads in a workgroup first, each further one with half as
// many, down to one matrix. complete is prefill or decode.
//
// Errors: vk.ErrMissingFeature when no shape of the device fits.
func (f matrixFit) all(element string, heads int, complete func(matrixTiling) (matrixTiling, bool)) ([]matrixTiling, error) {
	return opkit.FitMatrix(f.caps, element, func(s vk.CoopMatShape) (list []matrixTiling, ok bool) {
		t, ok := f.start(s)
		if !ok {
			return nil, false
		}
		for t.heads < heads {
			t.heads *= 2
		}
		for ; t.heads >= t.m; t.heads /= 2 {
			if full, ok := complete(t); ok {
				list = append(list, full)
			}
		}
		return list, len(list) > 0
	})
}

// rows returns ROWS, the layout of rows in shared memory, if lanes hold them as the profile says:
// columns of V come by fours. 0: they do not.
func (f matrixFit) rows(t matrixTiling) int {
	if cache.D/t.n/t.subgroups%4 != 0 {
		return 0
	}
	return max(f.tune.Device.MatrixRows, rowsAs)
}

// askRows asks the device whether its lanes hold rows as tilings say; where they do not, their
// rows are 0.
//
// Errors: those of opkit.Package.MatrixRows.
func askRows(dev *vk.Device, variant string, tilings []tiling) (err error) {
	for i := range tilings {
		if t := &tilings[i]; t.rows != 0 {
			c := t.constants // threads, subgroup, M, N, K
			if t.rows, err = pkg.MatrixRows(dev, variant, int(c[2]), int(c[3]), int(c[4]), int(c[1]), t.rows); err != nil {
				return err
			}
		}
	}
	return nil
}

// prefillTilings are the tilings of attn_prefill_cm.
func (f matrixFit) prefillTilings(element string, heads int) (list []tiling, err error) {
	fit, err := f.all(element, heads, f.prefill)
	for _, t := range fit {
		share := float64(t.heads) / float64(fit[0].heads)
		x := t.tiling(tuning.RowShare + (1-tuning.RowShare)*share)
		x.rows = f.rows(t)
		list = append(list, x)
	}
	return list, err
}

// decodeTilings are the tilings of attn_decode_cm: where shared memory has no room for its tile
// with any number of heads, as in 32 KiB, those with half of it.
func (f matrixFit) decodeTilings(element string, heads int) (list []tiling, err error) {
	fit, err := f.all(element, heads, f.decode)
	if err != nil {
		if fit, err = f.all(element, heads, f.decodeFew); err != nil {
			return nil, err
		}
	}
	tune, full := &f.tune.Attention, fit[len(fit)-1].tile
	for _, t := range fit {
		share := float64(t.heads) / float64(fit[0].heads)
		x := t.tiling(tune.DecodeTile * float64(t.tile) / float64(full) * (tune.DecodeShare + (1-tune.DecodeShare)*share))
		x.rotates, x.norms, x.rows, x.places = true, t.normsQueries(), f.rows(t), true
		if t.threads() < 16*full {
			x.code = tuning.DecodeCode
		}
		list = append(list, x)
	}
	return list, nil
}
