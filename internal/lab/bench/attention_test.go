package bench

import (
	"context"
	"errors"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

func TestAttentionRows(t *testing.T) {
	dev := testkit.Device(t)
	seen := map[string]int{}
	o := AttentionOptions{Heads: []int{5}, Batches: []int{1, 3}, TopK: []int{64}, Rows: []int{pattern}, Common: Common{Reps: 2, Warmup: -1, Seed: 1}}
	if err := Attention(context.Background(), dev, o, Limits{CopyGBs: 1, MatrixTFLOPs: 1}, Silent{}, func(r OpRow) {
		seen[r.Op]++
		if r.Status != "ok" || r.Variant == "" || r.Sets < 2 || !(r.Time.Median > 0 && r.GBs > 0 && r.TFLOPs > 0 && (r.FloorUS > 0) == (r.Op != "prefill")) {
			t.Errorf("row %+v", r)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, op := range AttentionOps {
		if want := map[bool]int{false: 2, true: 1}[op == "prefill"]; seen[op] != want {
			t.Errorf("%d rows of %s, want %d", seen[op], op, want)
		}
	}
}

func TestAttentionArguments(t *testing.T) {
	dev := testkit.Device(t)
	for _, o := range []AttentionOptions{{Ops: []string{"x"}}, {Heads: []int{129}}, {Batches: []int{0}}, {TopK: []int{0}}, {TopK: []int{65}}, {Rows: []int{1}}, {Common: Common{Reps: -1}}} {
		err := Attention(context.Background(), dev, o, Limits{}, Silent{}, func(OpRow) { t.Errorf("%+v has rows", o) })
		if !errors.Is(err, vk.ErrArgument) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Every case that others were measured with is one that the suite has.
func TestAttentionPeers(t *testing.T) {
	table, err := Peers()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, c := range attentionCases(AttentionOptions{}, false) {
		have[c.op+" "+c.name] = true
	}
	found := 0
	for _, r := range table.Rows {
		for _, op := range AttentionOps {
			if r.Op == op {
				found++
				if !have[r.Op+" "+r.Case] {
					t.Errorf("no case %s %s", r.Op, r.Case)
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("%d measurements of others", found)
	}
}
