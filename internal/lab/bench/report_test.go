package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/picture/pagetest"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

// reported returns what a report of some rows says.
func reported[R any](t *testing.T, rows []R, format string, start func(on ReportOn) (*Report[R], error)) string {
	t.Helper()
	var out bytes.Buffer
	r, err := start(ReportOn{&out, format, testAdapter, "", anyLimits})
	require.NoError(t, err)
	for _, x := range rows {
		r.Add(x)
	}
	require.NoError(t, r.Close())
	return out.String()
}

// words are those of a text with one space between them, whatever the columns of its tables.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

var testAdapter = &vk.Adapter{Name: "a device, of tests"}

// hostile names something in a way that a page must not take for its own.
const hostile = `<script>alert("x")</script> | & ]]>`

// Rows of tests, as of runs: what is ok, and what is not.
var (
	testOps = []OpTime{{Name: "wq_b", Layer: "c4a", Time: one(3), Work: Work{Weights: 1e6, Flop: 1e7}, Limit: 1, Share: 0.3,
		Dispatches: 2}}
	testLayers = []LayerRow{
		{Model: "flash", Kind: "c4a", Mode: "decode", Batch: 1, Context: 9, Status: "ok", Time: one(10), Limit: 5, Share: 0.5,
			Ops: testOps},
		{Model: "flash", Kind: "c4a", Mode: "decode", Status: "wrong", Detail: hostile},
	}
	testSteps = []StepRow{{Model: "small", Weights: "fp8", Batch: 1, Context: 9, Status: "ok", Time: one(10), Apart: one(12),
		ApartHost: one(6), ApartWall: one(20), Host: one(4), Latency: one(15), Chained: one(11), ChainedHost: one(5), ChainedWall: one(17), Floor: one(8),
		TimesFloor: 1.25, TimesChainedFloor: 1.2, ChainedFloor: one(9), Limit: 5, Ops: testOps}}
	testPrompts = []PrefillRow{{Model: "small", Weights: "fp8", Tokens: 40, Chunk: 24, Layers: 3, Status: "ok", Time: one(40),
		TokensPerS: 1e6, Limit: 4, Chunks: []ChunkTime{{0, 24, one(20), 2}, {24, 16, one(20), 2}}, Shared: "43 layers have the weights of 3"}}
	testSingles = []OpRow{
		{Op: "quantize_and_insert_k_cache", Case: "tokens=4096", Variant: "base", Status: "ok", Time: one(20), Bytes: 1616, GBs: 0.08,
			ShareCopy: 0.1, FloorUS: 5, FloorLaunches: 2, ShareFloor: 0.25, Peers: []Peer{{"p", 10}}},
		{Op: "linear", Case: "tokens=1/" + strings.Repeat("long", 20), Status: "ok", Time: one(20), Bytes: 1e6, Flop: 1e7},
		{Op: "linear", Case: hostile, Status: "skipped", Detail: hostile},
	}
)

func one(us float64) Time { return Time{Median: us, P95: us + 1, Samples: []float64{us}} }

// TestReports holds what each suite's report says in each format: tables and a page for people, no
// wider than a terminal, and for programs a line of its own for each part of a row, empty where
// nothing was measured.
func TestReports(t *testing.T) {
	singles := func(format string) string {
		return reported(t, testSingles, format, func(on ReportOn) (*Report[OpRow], error) { return NewOpReport(on, "memory") })
	}
	for name, c := range map[string]struct {
		report       func(format string) string
		md           []string
		csv          []map[string]string
		benchstat    string
		page         []string
		bars, points int
	}{
		"layer": {func(f string) string { return reported(t, testLayers, f, NewLayerReport) },
			[]string{"| flash | c4a | decode | 0 | 9 | 10.0 |", "operation by operation", "| c4a | wq_b | 3.0 | 4.0 | 100.0% |"},
			[]map[string]string{{"op": "layer", "us": "10", "dispatches": "2"}, {"op": "wq_b", "us": "3", "limit_us": "1"},
				{"op": "layer", "us": ""}},
			"BenchmarkLayer/model=flash/kind=c4a/weights=/mode=decode/tokens=0/context=9/op=wq_b 1 3000 ns/op\n",
			[]string{"batch 1, context 9", "WRONG: flash, c4a layer", hostile}, 1, 1},
		"step": {func(f string) string { return reported(t, testSteps, f, NewStepReport) },
			[]string{"| context | tokens/s | layers |", "| 8.0 | 1.25 |", "A layer: window: 1 layers",
				"only read take 8.0 us, the step 1.25 times that; chained 9.0 us, 1.20 times."},
			[]map[string]string{{"op": "step", "us": "10", "layer_by_layer_us": "12", "layer_by_layer_host_us": "6",
				"layer_by_layer_latency_us": "20", "host_us": "4", "host_p95_us": "5", "latency_us": "15", "chained_us": "11",
				"chained_host_us": "5", "chained_latency_us": "17", "floor_us": "8", "chained_floor_us": "9"},
				{"op": "wq_b", "kind": "c4a", "us": "3", "floor_us": "", "host_us": "", "latency_us": "", "dispatches": "2",
					"weight_mb": "1"}},
			"BenchmarkStep/model=small/weights=fp8/batch=1/context=9 1 10000 ns/op 4000 host-ns/op\n" +
				"BenchmarkChainedStep/model=small/weights=fp8/batch=1/context=9 1 11000 ns/op 5000 host-ns/op\n",
			[]string{"chained", "step"}, 3, 1},
		"prefill": {func(f string) string { return reported(t, testPrompts, f, NewPrefillReport) },
			[]string{"| small | fp8 | 40 | 24 | 3 | 1e+06 | 40.0 |", "| 24 to 40 |"},
			[]map[string]string{{"part": "prompt", "tokens": "40", "prompt": "40"}, {"part": "chunk", "first": "0", "us": "20"},
				{"first": "24", "tokens": "16", "latency_us": "", "weight_mb": ""}},
			"BenchmarkPrefill/model=small/weights=fp8/tokens=40/chunk=24 1 40000 ns/op 1000000.0 tokens/s\n",
			[]string{"1e+06 tokens/s", "tokens 24 to 40", "43 layers have the weights of 3"}, 2, 0},
		"operations": {singles,
			[]string{"between its matrix products", words(floorText), "peers, us (ours / theirs)", "p 10 (2.00)", "| 5.0 | 25.0% |"},
			[]map[string]string{{"bytes": "1616", "tflops": "", "ratio": "2", "goal": "insert 4096 rows", "floor_us": "5",
				"floor_launches": "2", "share_floor": "0.25", "samples_us": "20"}, {"ratio": "", "check": "ok"}, {"us": "", "check": "skipped"}},
			"BenchmarkMemory/op=quantize_and_insert_k_cache/variant=base/tokens=4096 1 20000 ns/op\n",
			[]string{"SKIPPED", hostile}, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			md := words(c.report("md"))
			for _, want := range c.md {
				assert.Contains(t, md, want)
			}
			defer describe.Fit(describe.Width)
			for _, columns := range []int{79, 100} {
				describe.Fit(columns)
				for line := range strings.Lines(c.report("md")) {
					assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), columns, "%s", line)
				}
			}
			rows := testkit.CSV(t, c.report("csv"))
			require.Len(t, rows, len(c.csv))
			for i, want := range c.csv {
				maps.Copy(want, map[string]string{"device": testAdapter.Name, "profile": "generic", "version": describe.Running().Version})
				for column, v := range want {
					assert.Equal(t, v, rows[i][column], "line %d, %s", i, column)
				}
				at, err := time.Parse("2006-01-02T15:04:05Z", rows[i]["date"])
				require.NoError(t, err)
				assert.WithinDuration(t, time.Now(), at, time.Minute, "in UTC")
			}
			var all struct {
				Version string
				Rows    []struct {
					Time struct {
						Samples []float64 `json:"samples_us"`
					}
				}
			}
			require.NoError(t, json.Unmarshal([]byte(c.report("json")), &all))
			assert.Equal(t, describe.Running().Version, all.Version)
			assert.Len(t, all.Rows[0].Time.Samples, 1)
			assert.Contains(t, c.report("benchstat"), c.benchstat)
			page := []byte(c.report("html"))
			text, drawn := pagetest.Text(t, page), pagetest.Pictures(t, page)
			for _, want := range append(c.page, testAdapter.Name, "generic", "measured limits") {
				assert.Contains(t, text, want)
			}
			assert.Equal(t, []int{c.bars, c.points}, []int{drawn["rect"], drawn["circle"]})
		})
	}
	without := reported(t, testLayers[1:], "md", NewLayerReport) + reported(t, testSingles[1:], "md",
		func(on ReportOn) (*Report[OpRow], error) { return NewOpReport(on, "linear") })
	assert.NotContains(t, strings.ToLower(without), "peers")
	assert.NotContains(t, without, "floor")
	_, err := NewOpReport(ReportOn{Format: "md", Adapter: testAdapter}, "soup")
	assert.ErrorIs(t, err, vk.ErrArgument)
}

// TestBlocks holds how a report's text becomes paragraphs and tables.
func TestBlocks(t *testing.T) {
	table := block{Head: []string{"a", "b"}, Rows: [][]string{{"1", "x | y"}, {"2", ""}}}
	assert.Equal(t, []block{{Text: "One two."}, table, {Text: "Three"}},
		blocksOf("One\ntwo.\n\n| a | b |\n| --- | ---:|\n| 1 | x \\| y |\n| 2 | |\nThree\n"))
}

func TestCompare(t *testing.T) {
	long(t)
	dev, ctx := testkit.Device(t), context.Background()
	peers := PeerTable{Source: "nobody", Rows: []PeerRow{
		{Op: "quantize_and_insert_k_cache", Case: "tokens=2", Peers: []Peer{{"somebody", 1e9}}},
		{Op: "fused_indexer_q_rope_quant_fp8", Case: "tokens=2/heads=64", Peers: []Peer{{"fast", 1e-3}, {"slow", 4e9}}},
		{Op: "indexer_logits_fp8", Case: "tokens=2/context=4096/heads=64", Peers: []Peer{{"somebody", 3}}},
		{Op: "indexer_topk", Case: "of another size", Peers: []Peer{{"x", 1}}},
	}}
	var out bytes.Buffer
	report, err := NewCompareReport(ReportOn{&out, "md", dev.Adapter(), "", anyLimits}, peers)
	require.NoError(t, err)
	require.NoError(t, Compare(ctx, dev, CompareOptions{Peers: peers,
		Ops: []string{"quantize", "fused_indexer", "indexer_topk", "indexer_logits"}, Common: quick}, anyLimits, silent{}, report.Add))
	require.NoError(t, report.Close())
	for _, want := range []string{"| quantize_and_insert_k_cache | tokens=2 | somebody | 1e+09 |", "| 0.00 |", "slow 4e+09",
		"indexer_logits_mxfp4 | tokens=2/context=4096/heads=64 | our indexer_logits_fp8 |", "MXFP4 paged logits: ", "indexer queries: ",
		"missed", "not run here: 1 of indexer_topk", "Peers: nobody"} {
		assert.Contains(t, words(out.String()), want)
	}
	assert.NotContains(t, out.String(), "tokens=1 ", "cases without a peer")
	assert.NotContains(t, out.String(), "linear", "cases without a peer")
	var bad *vk.ArgumentError
	err = Compare(ctx, dev, CompareOptions{Peers: peers, Ops: []string{"soup"}}, anyLimits, silent{}, nil)
	require.ErrorAs(t, err, &bad)
	assert.Equal(t, "op", bad.Arg)
}

// Quotients are judged by their geometric mean and the largest, shares by the least.
func TestOutcomes(t *testing.T) {
	row := func(op, name string, us float64, share float64) OpRow {
		return OpRow{Op: op, Case: name, Status: "ok", Time: Time{Median: us}, ShareCopy: share, Peers: []Peer{{"p", 10}}}
	}
	for _, c := range []struct {
		rows []OpRow
		want string
	}{
		{[]OpRow{row(decodeOp, "heads=64/topk=512/batch=1", 8, 0), row(decodeOp, "heads=64/topk=512/batch=2", 9, 0)}, "0.849 times the peer's time in geometric mean of 2 rows, most 0.900 (flashmla_sparse_decode heads=64/topk=512/batch=2); at most 1.05, each at most 1.15, aim 0.90: reached, with the aim"},
		{[]OpRow{row(decodeOp, "heads=64/topk=512/batch=1", 10, 0), row(decodeOp, "heads=64/topk=512/batch=2", 10.5, 0)}, ": reached"},
		{[]OpRow{row(decodeOp, "heads=64/topk=512/batch=1", 8, 0), row(decodeOp, "heads=64/topk=512/batch=2", 11.6, 0)}, ": missed"},
		{[]OpRow{row("linear", "matrix=wq_b/model=pro/weights=fp8/tokens=16", 1, 0.85), row("linear", "matrix=wq_b/model=pro/weights=fp8/tokens=1", 1, 0.95)}, "least 85.0% (linear matrix=wq_b/model=pro/weights=fp8/tokens=16); at least 80%, aim 90%: reached"},
		{[]OpRow{row("linear", "matrix=wq_b/model=pro/weights=fp8/tokens=16", 1, 0.75)}, ": missed"},
		{[]OpRow{row("linear", "matrix=wq_b/model=pro/weights=fp8/tokens=1", 1, 0.95), {Op: "linear", Case: "tokens=4", Status: "wrong"}}, ": missed"},
	} {
		list := outcomes(c.rows)
		require.Len(t, list, 1, "want ...%s", c.want)
		assert.True(t, strings.HasSuffix(list[0].String(), c.want), "want ...%s", c.want)
	}
	high, low := row("linear", "tokens=1", 1, 0.5), row("linear", "tokens=4", 1, 0.5)
	high.ShareFloor, low.ShareFloor = 0.625, 0.4 // of floors at 80 % of the limit, and beyond it
	list := outcomes([]OpRow{high, low})
	require.Len(t, list, 1)
	assert.True(t, strings.HasSuffix(list[0].String(),
		"missed; launches that only read reach 89.4% of the limit in geometric mean, least 80.0%; ours reach 50.0% of what they do"))
	assert.Nil(t, outcomes(nil))
}

func TestPeersErrors(t *testing.T) {
	row := `{"op": "a", "case": "b", "peers": [{"name": "n", "us": 1}]}`
	for name, text := range map[string]string{
		"empty": "", "syntax": "{", "unknown field": `{"source": "s", "rows": [` + row + `], "more": 1}`, "no source": `{"rows": [` + row + `]}`,
		"no rows": `{"source": "s", "rows": []}`, "twice": `{"source": "s", "rows": [` + row + "," + row + `]}`, "two tables": `{"source": "s", "rows": [` + row + `]} {}`,
		"no op": `{"source": "s", "rows": [{"case": "b", "peers": [{"name": "n", "us": 1}]}]}`, "no peers": `{"source": "s", "rows": [{"op": "a", "case": "b"}]}`,
		"no name": `{"source": "s", "rows": [{"op": "a", "case": "b", "peers": [{"us": 1}]}]}`, "no time": `{"source": "s", "rows": [{"op": "a", "case": "b", "peers": [{"name": "n"}]}]}`,
		"negative": `{"source": "s", "rows": [{"op": "a", "case": "b", "peers": [{"name": "n", "us": -1}]}]}`, "huge": `{"source": "s", "rows": [{"op": "a", "case": "b", "peers": [{"name": "n", "us": 1e999}]}]}`,
		"large": `{"source": "` + strings.Repeat("x", maxPeers) + `"}`,
	} {
		file := filepath.Join(t.TempDir(), "x.json")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		table, err := ReadPeers(file)
		require.ErrorIs(t, err, ErrPeers, name)
		assert.ErrorContains(t, err, file, name)
		assert.Empty(t, table.Rows, name)
	}
	_, err := ReadPeers(filepath.Join(t.TempDir(), "none.json"))
	assert.ErrorIs(t, err, ErrPeers)
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// Any bytes are a table that says each case once, with positive times, or refused.
func FuzzPeers(f *testing.F) {
	f.Add([]byte(`{"source":"s","rows":[{"op":"topk","case":"c","peers":[{"name":"n","us":1.5}]}]}`))
	f.Add([]byte(`{"source":"\u001b[31m","rows":[{},{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := parsePeers("f", data)
		if err != nil {
			require.ErrorIs(t, err, ErrPeers)
			return
		}
		for _, r := range table.Rows {
			for _, p := range r.Peers {
				assert.True(t, p.US > 0 && printable(r.Op+r.Case+r.Part+p.Name), "%+v", r)
			}
		}
	})
}
