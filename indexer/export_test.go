package indexer

import (
	"slices"

	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// SelectScratchBytes is the most scratch of a Select of the default segments for T tokens and a
// width of k, on any device and for contexts of any length. With R tokens at a time, which is T up
// to 512 and an even share of T beyond, and S = SelectSegment(R) it is
//
//	R * S * 4  +  R * (L * k' * 8 + 16)  +  R * W * 4
//
// for the scores of a segment, L lists of k' candidates, k' = k rounded up to 4, and W tops of
// tiles, W = S/16 rounded up to 4. L is 1 where rows are not sliced. Otherwise it is 1 more than
// the slices of a row: a power of two, at most 128 / R and what any profile allows. Each part is
// rounded up to 256 bytes. R * S is at most 2^23 and L * R at most 128 + R, which bounds the sum
// for any number of tokens.
func SelectScratchBytes(tokens, k int) uint64 {
	if tokens < 1 {
		return 0
	}
	rows := selectTile(tokens, selectRows)
	segment := selectSegment(rows)
	return selectScratch(rows, segment, mostLists(rows, segment), k)
}

// mostLists returns the most lists of candidates that `rows` rows of n entries have with any
// profile.
func mostLists(rows, n int) int {
	lists := 1
	for _, name := range tuning.Names() {
		if p, err := tuning.Named(name); err == nil {
			lists = max(lists, topkLists(topkSlices(&p.TopK, 128, rows, n)))
		}
	}
	return lists
}

// CandidateScratchBytes is the most scratch that a Select of the default segments needs for
// candidate blocks besides SelectScratchBytes, for T tokens and k blocks each, of `block` entries,
// on any device and for contexts of any length. With R rows at a time, S entries of a segment and L
// lists, as there, it is
//
//	R * S/block * 4  +  R * 4  +  R * (L * k' * 8 + 16)
//
// Where S is less than the entries of k blocks, a round has as many of these, and fewer rows: then
// its own scores and lists are in the sum, too.
func CandidateScratchBytes(tokens, k, block int) uint64 {
	if tokens < 1 {
		return 0
	}
	rows := selectTile(tokens, candidateRows(selectRows, k, block))
	segment := max(selectSegment(rows), opkit.RoundUp(k*block, 64))
	blocks, own := segment/max(block, 1), uint64(0)
	if usual := selectTile(tokens, selectRows); rows != usual || segment != selectSegment(usual) {
		own = selectScratch(rows, segment, mostLists(rows, segment), MaxK)
	}
	scores, counts := tensor.Need(tensor.F32, rows, blocks), tensor.Need(tensor.I32, rows)
	return own + scores + counts + tensor.Need(tensor.U8, int(listBytes(rows, mostLists(rows, blocks), k)))
}

// K is the number of picks of a row.
func (o *TopK) K() int { return o.cfg.K }

// Shared tells whether the kernel is idx_logits_prompt.
func Shared(o *Logits) bool { return o.shared }

// Share makes it that kernel, whether or not it is worth it; false where it cannot be.
func Share(o *Logits) bool {
	if !o.inLanes {
		return false
	}
	t, ok := promptTilingOf(o.dev.Caps(), o.tune, o.cfg, o.lanes)
	if ok {
		o.prompt, o.shared = t, true
		o.k = pkg.Later(o.dev, o.spec())
	}
	return ok
}

// TilesTopK selects from rows with the tops of their tiles by idx_topk_tiles; false where
// the device cannot.
func TilesTopK(dev *vk.Device, k, tile int) (func(rec *vk.Recorder, logits, tops, lens, out tensor.Tensor) error, bool, error) {
	o, err := NewTopK(dev, TopKConfig{K: k})
	if err != nil {
		return nil, false, err
	}
	kernel, err := o.buildTiles(tile)
	return func(rec *vk.Recorder, logits, tops, lens, out tensor.Tensor) error {
		return o.record(rec, "top-k", topkRound{logits: logits, tops: tops, lens: lens, out: out, limit: logits.Shape[1], tiles: kernel})
	}, kernel != nil, err
}

// TopKTunings are choices of shapes to test and to compare: what a GPU takes, the same
// with smaller digits of the radix selection, and with no kernel that holds a row in
// registers.
var TopKTunings = []string{"gpu", "bits10", "stream"}

// NewTunedTopK is NewTopK with the shapes that one of TopKTunings names, and without
// idx_topk_lanes.
func NewTunedTopK(dev *vk.Device, cfg TopKConfig, name string) (*TopK, error) {
	tune := hopper().TopK
	switch name {
	case "bits10":
		tune.Short = slices.Clone(tune.Short)
		for i := range tune.Short {
			tune.Short[i].Bits = 10
		}
	case "stream":
		tune.Short = nil
	}
	o, err := newTopK(dev, cfg, &tune)
	if err == nil {
		o.lanes = nil
	}
	return o, err
}

// hopper is the profile whose choices tests state.
func hopper() *tuning.Profile {
	p, err := tuning.Named("hopper")
	if err != nil {
		panic(err)
	}
	return p
}

// PickSlices returns the slices of a row of t tokens that picks in the launch of its scores, 0
// where another launch does.
func (o *Select) PickSlices(t, entries int) int {
	arrived := tensor.Of(o.dev.Dummy(), tensor.I32, t, SelectCounters)
	return o.rounds(SelectArgs{Arrived: arrived}, t, entries)[0].picks.slices
}
