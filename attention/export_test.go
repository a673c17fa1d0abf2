package attention

import (
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/tuning"
)

// WithoutLanes runs f as on a device whose layout of matrices is unknown.
func WithoutLanes(f func()) {
	lanesOff = true
	defer func() { lanesOff = false }()
	f()
}

// ByRows is WithoutLanes as on a device whose lanes hold rows as lavapipe's do.
func ByRows(f func()) {
	rowsAs = 2
	defer func() { rowsAs = 0 }()
	WithoutLanes(f)
}

// Rows returns the layout of a prefill's tiles in shared memory.
func Rows(o *Prefill) int { return o.tilings[0].rows }

// DecodeRows is the same of a decoder.
func DecodeRows(o *Decoder) int { return o.tilings[0].rows }

// KSplit runs f as if attn_decode_cm had shared memory for n parts of the dims.
func KSplit(n int, f func()) {
	maxKSplit = n
	defer func() { maxKSplit = cache.D }()
	f()
}

// InLanes reports whether a decoder has attn_decode_lanes.
func InLanes(o *Decoder) bool { return len(o.tilings) > 0 && o.tilings[0].stem == "attn_decode_lanes" }

// PlainForm is a form of the builds without matrix units: two constants, invocations, bytes of
// shared memory.
type PlainForm struct {
	Heads, Tile, Threads uint32
	Shared               int
}

// PlainForms are those of the profile for GPUs without measurements.
func PlainForms() (list []PlainForm) {
	tune, _ := tuning.Named("generic")
	for _, x := range tune.Attention.Plain {
		f := plainForm(x)
		list = append(list, PlainForm{uint32(f.Heads), uint32(f.Tile), uint32(f.threads()), f.sharedBytes()})
	}
	return list
}

// References of parts of operations.
var (
	PackIndicesRef   = packIndicesRef
	PlacedIndicesRef = placedIndicesRef
)
