package indexer

import (
	"fmt"
	"testing"
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
		o := &Select{cfg: SelectConfig{K: 512, Segment: c.segment, Rows: SelectRows}, topk: &TopK{cfg: TopKConfig{K: 512}, workgroups: 128}}
		rounds := o.rounds(SelectArgs{}, c.tokens, c.entries)
		name := fmt.Sprintf("%d tokens, %d entries, segment %d", c.tokens, c.entries, c.segment)
		if len(rounds) != c.rounds {
			t.Errorf("%s: %d rounds, want %d", name, len(rounds), c.rounds)
		}
		size := o.ScratchBytes(c.tokens)
		seen := 0
		for i, r := range rounds {
			out, lists := r.logits.Out.View(), r.topk.scratch
			if out.Offset+out.Size > lists.Offset || lists.Offset+lists.Size > size {
				t.Errorf("%s: round %d has scores at %d to %d and lists to %d, of %d bytes", name, i, out.Offset, out.Offset+out.Size, lists.Offset+lists.Size, size)
			}
			if need := max(topkLists(r.topk.slices), 1); r.topk.lists < need {
				t.Errorf("%s: round %d has room for %d lists and needs %d", name, i, r.topk.lists, need)
			}
			seen += r.logits.Out.Shape[0] * r.logits.Out.Shape[1]
		}
		if want := c.tokens * max((c.entries+3)&^3, 4); seen != want {
			t.Errorf("%s: %d scores, want %d", name, seen, want)
		}
	}
}
