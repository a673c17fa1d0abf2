package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

var smallIndexer = IndexerOptions{Heads: 3, TopK: []int{61}, Batches: []int{1, 3}, Prefill: []int{129}, Contexts: []int{700}, Common: Common{Reps: 2, Warmup: -1, Seed: 1}}

func TestIndexerRows(t *testing.T) {
	long(t)
	dev, ctx := testkit.Device(t), context.Background()
	limits := Limits{CopyGBs: 1, MatrixTFLOPs: 1}
	for _, format := range Formats {
		o := smallIndexer
		if format != "md" {
			o.Ops = []string{"query", "compress_main4"}
		}
		var out bytes.Buffer
		report, err := NewOpReport(&out, format, "indexer", dev.Adapter(), limits)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		if err := Indexer(ctx, dev, o, limits, Silent{}, func(r OpRow) {
			seen[r.Op]++
			if r.Status != "ok" || r.Variant == "" || r.Sets < 2 || !(r.Time.Median > 0 && r.Bytes > 0 && r.GBs > 0 && r.ShareCopy > 0) {
				t.Errorf("row %+v", r)
			}
			if matrix := strings.HasPrefix(r.Op, "logits") || strings.HasPrefix(r.Op, "select"); matrix != (r.TFLOPs > 0) {
				t.Errorf("%s has %g TFLOP/s", r.Op, r.TFLOPs)
			}
			report.Add(r)
		}); err != nil {
			t.Fatal(err)
		}
		if err := report.Close(); err != nil {
			t.Fatal(err)
		}
		for _, op := range IndexerOps {
			if chosen(o.Ops, op) != (seen[op] > 0) {
				t.Errorf("%s: %d rows of %s", format, seen[op], op)
			}
		}
		switch format {
		case "csv":
			if _, err := csv.NewReader(&out).ReadAll(); err != nil {
				t.Error(err)
			}
		case "json":
			if !json.Valid(out.Bytes()) {
				t.Error("the report is not JSON")
			}
		case "benchstat":
			if n := len(regexp.MustCompile(`(?m)^BenchmarkIndexer/op=query_quant_fp8/variant=da/tokens=1/heads=3 1 `).FindAllString(out.String(), -1)); n != 2 {
				t.Errorf("%d samples, want 2:\n%s", n, out.String())
			}
		}
	}
}

// What a kernel makes of other inputs than the host thinks it has is called wrong.
func TestIndexerSeesWrongResults(t *testing.T) {
	long(t)
	dev, ctx := testkit.Device(t), context.Background()
	o := smallIndexer.withDefaults(dev.Adapter().Type)
	all := indexerCases(o)
	for _, op := range MemoryOps {
		all = append(all, memoryCases(op, IndexerOptions{Batches: []int{3}, Rows: 512}, []int{8})...)
	}
	for _, c := range all {
		t.Run(c.op+"/"+c.name, func(t *testing.T) {
			r := newOpRig(ctx, dev, o, Silent{})
			defer r.Close()
			if err := c.build(ctx, r); err != nil {
				t.Fatal(err)
			}
			if res, err := r.check(ctx); err != nil || !res.Pass {
				t.Fatalf("untouched: %+v, %v", res, err)
			}
			if err := run(ctx, dev, func(rec *vk.Recorder) error {
				for _, a := range r.arenas {
					whole, err := a.Alloc(tensor.U8, 0) // nothing, to learn the buffer
					if err != nil {
						return err
					}
					if err := rec.Fill(whole.Buffer.Whole(), 0x3c3c3c3c); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if res, err := r.check(ctx); err == nil && res.Pass {
				t.Errorf("spoiled, but the check passes: %+v", res)
			}
		})
	}
}

// Every measurement of others belongs to a case that is timed by default.
func TestPeers(t *testing.T) {
	peers, err := Peers()
	if err != nil || peers.Source == "" || len(peers.Rows) == 0 {
		t.Fatal(err, peers)
	}
	known := map[string]bool{}
	o := IndexerOptions{}.withDefaults(vk.TypeDiscrete)
	cases := append(indexerCases(o), attentionCases(AttentionOptions{}, false)...)
	for _, op := range MemoryOps {
		cases = append(cases, memoryCases(op, o, []int{64, 128})...)
	}
	for _, c := range cases {
		known[c.op+" "+c.name] = true
	}
	for _, r := range peers.Rows {
		if !known[r.Op+" "+r.Case] {
			t.Errorf("no case %s %s", r.Op, r.Case)
		}
		if compressor := strings.HasPrefix(r.Op, "compress"); compressor != slices.Contains([]string{"save", "compress", "both"}, r.Part) {
			t.Errorf("%s %s: part %q", r.Op, r.Case, r.Part)
		}
		for _, p := range r.Peers {
			if p.Name == "" || p.US <= 0 {
				t.Errorf("%s %s: %+v", r.Op, r.Case, p)
			}
		}
	}
	if got := PeersOf("topk", "tokens=32/context=131072/k=1024", ""); len(got) != 2 || got[0].US != 26.9 {
		t.Errorf("peers of a top-k: %+v", got)
	}
}

func TestIndexerOptionErrors(t *testing.T) {
	dev := testkit.Device(t)
	for name, change := range map[string]func(*IndexerOptions){
		"heads":   func(o *IndexerOptions) { o.Heads = 129 },
		"batch":   func(o *IndexerOptions) { o.Batches = []int{0} },
		"prefill": func(o *IndexerOptions) { o.Prefill = []int{3} },
		"context": func(o *IndexerOptions) { o.Contexts = []int{10} },
		"topk":    func(o *IndexerOptions) { o.TopK = []int{2049} },
		"reps":    func(o *IndexerOptions) { o.Reps = -1 },
		"op":      func(o *IndexerOptions) { o.Ops = []string{"topk", "soup"} },
	} {
		o := smallIndexer
		change(&o)
		if err := Indexer(context.Background(), dev, o, Limits{}, Silent{}, func(OpRow) {}); !errors.Is(err, vk.ErrArgument) {
			t.Errorf("%s: %v, want ErrArgument", name, err)
		}
	}
}

func TestMemoryRows(t *testing.T) {
	long(t)
	dev, ctx := testkit.Device(t), context.Background()
	o := IndexerOptions{Heads: 12, Batches: []int{1, 3}, Prefill: []int{130}, Rows: 200, Common: Common{Reps: 2, Warmup: -1, Seed: 1}}
	seen := map[string]int{}
	if err := Memory(ctx, dev, o, Limits{CopyGBs: 1, MatrixTFLOPs: 1}, Silent{}, func(r OpRow) {
		seen[r.Op]++
		if r.Status != "ok" || r.Variant == "" || r.Sets < 2 || !(r.Time.Median > 0 && r.Bytes > 0 && r.ShareCopy > 0) {
			t.Errorf("row %+v", r)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, op := range MemoryOps {
		if want := 3; seen[op] != want && !(op == "gather_k" && seen[op] == 2) {
			t.Errorf("%d rows of %s, want %d", seen[op], op, want)
		}
	}
	o.Ops = []string{"topk"}
	if err := Memory(ctx, dev, o, Limits{}, Silent{}, func(OpRow) {}); !errors.Is(err, vk.ErrArgument) {
		t.Errorf("an operation of another suite: %v", err)
	}
}
