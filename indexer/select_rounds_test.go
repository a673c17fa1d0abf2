package indexer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

// A context has as few rounds as there are segments in it; every round's scores and lists
// lie in the scratch that is asked for.
func TestSelectRounds(t *testing.T) {
	for _, c := range []struct{ tokens, entries, segment, rounds int }{
		{128, 32768, 0, 1}, {128, 65536, 0, 1}, {128, 65537, 0, 2}, {128, 262144, 0, 4},
		{1, 262144, 0, 1}, {1, 524288, 0, 2}, {1, 524289, 0, 3}, {1, 0, 0, 1},
		{16, 262144, 0, 1}, {32, 262144, 0, 1}, {33, 262144, 0, 2}, {513, 4096, 0, 2}, {513, 16384, 0, 2}, {513, 16385, 0, 4},
		{3, 2048, 1024, 2}, {3, 1024, 1024, 1},
	} {
		o := &Select{cfg: SelectConfig{K: 512, Segment: c.segment, Rows: selectRows}, topk: &TopK{cfg: TopKConfig{K: 512}, workgroups: 128, tune: &hopper().TopK}}
		rounds := o.rounds(SelectArgs{}, c.tokens, c.entries)
		name := fmt.Sprintf("%d tokens, %d entries, segment %d", c.tokens, c.entries, c.segment)
		assert.Len(t, rounds, c.rounds, "%s: rounds", name)
		size := o.ScratchBytes(c.tokens)
		seen := 0
		for i, r := range rounds {
			out, lists := r.logits.Out.View(), r.topk.scratch
			require.LessOrEqual(t, out.Offset+out.Size, lists.Offset,
				"%s: round %d has scores at %d to %d and lists to %d, of %d bytes", name, i, out.Offset, out.Offset+out.Size,
				lists.Offset+lists.Size, size)
			assert.LessOrEqual(t, lists.Offset+lists.Size, size,
				"%s: round %d has scores at %d to %d and lists to %d, of %d bytes", name, i, out.Offset, out.Offset+out.Size,
				lists.Offset+lists.Size, size)
			need := max(topkLists(r.topk.slices), 1)
			assert.GreaterOrEqual(t, r.topk.lists, need,
				"%s: round %d has room for %d lists and needs %d", name, i, r.topk.lists, need)
			seen += r.logits.Out.Shape[0] * r.logits.Out.Shape[1]
		}
		assert.Equal(t, c.tokens*max((c.entries+3)&^3, 4), seen, "%s: scores", name)
	}
}

// Long rows of one round are selected from by tiles, whose tops lie after scores and lists in the
// scratch that is asked for.
func TestSelectByTiles(t *testing.T) {
	for _, c := range []struct {
		tokens, k, tile, entries, segment int
		want                              bool
	}{
		{32, 512, 16, 32768, 0, true}, {1, 1024, 16, 262144, 0, true}, {32, 512, 16, 262144, 0, true}, {128, 1024, 16, 32768, 0, true},
		{32, 512, 16, 9216, 0, false}, {32, 512, 16, 9220, 0, true}, {32, 1024, 16, 16384, 0, false}, {32, 1024, 16, 16388, 0, true}, {32, 1, 16, 9220, 0, true},
		{128, 512, 16, 65540, 0, false}, {1, 512, 16, 262148, 0, false}, // two rounds
		{1, 64, 8, 131072, 0, true}, {1, 64, 8, 131076, 0, false}, // no room for the tops
		{1, 64, 8, 10204, 20480, true}, {1, 64, 8, 10201, 20480, false}, {1, 64, 4, 10204, 20480, false}, {1, 512, 16, 262148, 1 << 20, false}, {1, 512, 16, 262144, 1 << 20, true},
		{600, 512, 16, 16384, 0, true},
		{-32, 512, 16, 32768, 0, false}, {-1, 512, 16, 65532, 0, false}, {-1, 512, 16, 65536, 0, true}, {-64, 512, 16, 32768, 0, true}, // with counters of slices
	} {
		var args SelectArgs
		if c.tokens < 0 {
			c.tokens = -c.tokens
			args.Arrived = tensor.Of(vk.View{Buffer: new(vk.Buffer)}, tensor.I32, c.tokens)
		}
		o := &Select{cfg: SelectConfig{K: c.k, Segment: c.segment, Rows: selectRows}, topk: &TopK{cfg: TopKConfig{K: c.k}, workgroups: 128, tune: &hopper().TopK, lanes: []topkKernel{{nil, 4096}, {nil, 9216}}}, tiles: &tileTopK{tile: c.tile, most: 16384}}
		size := o.ScratchBytes(c.tokens)
		for _, r := range o.rounds(args, c.tokens, c.entries) {
			assert.Equal(t, c.want, r.topk.tiles != nil, "%+v: by tiles", c)
			if !c.want {
				continue
			}
			tops, lists := r.logits.tops, r.topk.scratch
			begin, n := tops.View().Offset, (r.topk.logits.Shape[1]+c.tile-1)/c.tile
			assert.False(t, begin < lists.Offset+lists.Size || begin%16 != 0 || begin+tops.Bytes() > size ||
				tops.Shape[0] != r.topk.logits.Shape[0] || tops.Shape[1] < n,
				"%+v: tops %v at %d, lists to %d, of %d bytes", c, tops, begin, lists.Offset+lists.Size, size)
		}
	}
}
