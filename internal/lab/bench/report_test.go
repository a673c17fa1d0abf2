package bench

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// csvColumns reads a table, demands numbers or nothing in all columns but those of
// words and those that say what was run, and returns the rows by the names of the columns.
func csvColumns(t *testing.T, text string, words ...string) (rows []map[string]string) {
	t.Helper()
	all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	require.NoError(t, err)
	words = append(words, "version", "commit", "date", "samples_us")
	for _, line := range all[1:] {
		row := map[string]string{}
		for i, v := range line {
			row[all[0][i]] = v
			if _, err := strconv.ParseFloat(v, 64); v != "" && err != nil && !slices.Contains(words, all[0][i]) {
				t.Errorf("%s is %q, want a number", all[0][i], v)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// recent demands a time of now, in UTC.
func recent(t *testing.T, text string) {
	t.Helper()
	at, err := time.Parse("2006-01-02T15:04:05Z", text)
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), at, time.Minute)
}

var testAdapter = &vk.Adapter{Name: "a device, of tests"}

func TestOpReports(t *testing.T) {
	time := Time{Median: 20, P95: 21, Samples: []float64{20}}
	rows := []OpRow{
		{Op: "quantize_and_insert_k_cache", Case: "tokens=4096", Variant: "base", Status: "ok", Time: time, Bytes: 1616, GBs: 0.08, ShareCopy: 0.1, FloorUS: 5, FloorLaunches: 2, ShareFloor: 0.25},
		{Op: "fused_q_kv_rmsnorm", Case: "tokens=2", Variant: "base", Status: "wrong"},
	}
	report := func(format, suite string) string {
		return reported(t, rows, format, func(on ReportOn) (*Report[OpRow], error) { return NewOpReport(on, suite) })
	}
	md := report("md", "memory")
	assert.Contains(t, md, "between its matrix products", "suite memory, without peers")
	assert.NotContains(t, strings.ToLower(md), "peers", "suite memory, without peers")
	assert.Contains(t, md, floorText, "a floor")
	assert.Regexp(t, `\| 5\.0 +\| 25\.0% +\| ok `, md, "a floor")
	assert.Regexp(t, `\| - +\| - +\| wrong `, md, "a floor")
	assert.Contains(t, report("benchstat", "linear"),
		"BenchmarkLinear/op=quantize_and_insert_k_cache/variant=base/tokens=4096 1 20000 ns/op")
	rows[0].Peers = []Peer{{"p", 10}}
	md = report("md", "memory")
	assert.Contains(t, md, "peers, us (ours / theirs)", "twice the peer's time")
	assert.Contains(t, md, "p 10 (2.00)", "twice the peer's time")
	table := csvColumns(t, report("csv", "compare"), "device", "driver", "profile", "op", "case", "part", "variant", "check", "peer", "peer2", "goal")
	x := table[0]
	assert.True(t, x["bytes"] == "1616" && x["tflops"] == "" && x["ratio"] == "2" &&
		x["goal"] == "insert 4096 rows" && x["floor_us"] == "5" && x["floor_launches"] == "2" &&
		x["share_floor"] == "0.25" && x["device"] == testAdapter.Name && x["profile"] == "generic", "%v", x)
	assert.Equal(t, describe.Running().Version, x["version"])
	assert.Equal(t, "20", x["samples_us"])
	recent(t, x["date"])
	x = table[1]
	require.Empty(t, x["us"], "%v", x)
	require.Empty(t, x["ratio"], "%v", x)
	assert.Equal(t, "wrong", x["check"], "%v", x)
	var whole struct {
		Version, Driver, Date string
		Rows                  []struct {
			Time struct {
				Samples []float64 `json:"samples_us"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(report("json", "memory")), &whole))
	assert.Equal(t, describe.Running().Version, whole.Version)
	assert.Equal(t, []float64{20}, whole.Rows[0].Time.Samples)
	recent(t, whole.Date)
	_, err := NewOpReport(ReportOn{Format: "md", Adapter: testAdapter}, "soup")
	assert.ErrorIs(t, err, vk.ErrArgument)
}

func TestLayerAndStepReports(t *testing.T) {
	us := func(v float64) Time { return Time{Median: v, P95: v + 1, Samples: []float64{v}} }
	ops := []OpTime{{Name: "wo_b", Layer: "all", Time: us(3), Dispatches: 2}}
	steps := []StepRow{{Model: "small", Weights: "fp8", Batch: 1, Context: 9, Status: "ok", Time: us(10), Apart: us(12), ApartHost: us(6), ApartWall: us(20), Host: us(4), Latency: us(15),
		Chained: us(11), ChainedHost: us(5), ChainedWall: us(17), Floor: us(8), TimesFloor: 1.25, TimesChainedFloor: 1.2, ChainedFloor: us(9), EmptyFloor: us(2), Ops: ops}}
	step := func(format string) string {
		return reported(t, steps, format, NewStepReport)
	}
	table := csvColumns(t, step("csv"), "device", "driver", "profile", "model", "weights", "kind", "op", "check")
	x := table[0]
	assert.True(t, x["op"] == "step" && x["us"] == "10" && x["layer_by_layer_us"] == "12" &&
		x["layer_by_layer_host_us"] == "6" && x["layer_by_layer_latency_us"] == "20" && x["host_us"] == "4" &&
		x["host_p95_us"] == "5" && x["latency_us"] == "15", "%v", x)
	x = table[0]
	assert.True(t, x["chained_us"] == "11" && x["chained_host_us"] == "5" && x["chained_latency_us"] == "17" &&
		x["floor_us"] == "8" && x["chained_floor_us"] == "9" && x["floor_without_bytes_us"] == "2", "%v", x)
	md := words(step("md"))
	assert.Contains(t, md, "| 8.0 | 1.25 |")
	assert.Contains(t, md, "only read take 8.0 us, the step 1.25 times that; chained 9.0 us, 1.20 times; 2.0 us where")
	x = table[1]
	assert.True(t, x["op"] == "wo_b" && x["us"] == "3" && x["floor_us"] == "" && x["host_us"] == "" &&
		x["latency_us"] == "" && x["dispatches"] == "2", "%v", x)
	assert.Contains(t, step("benchstat"),
		"BenchmarkStep/model=small/weights=fp8/batch=1/context=9 1 10000 ns/op 4000 host-ns/op\n")
	assert.Contains(t, step("benchstat"),
		"BenchmarkChainedStep/model=small/weights=fp8/batch=1/context=9 1 11000 ns/op 5000 host-ns/op\n")
	layers := []LayerRow{{Model: "small", Kind: "c4a", Mode: "decode", Status: "ok", Time: us(10), Ops: ops}, {Model: "small", Kind: "c4a", Mode: "decode", Status: "skipped"}}
	layer := func(format string) string {
		return reported(t, layers, format, NewLayerReport)
	}
	table = csvColumns(t, layer("csv"), "device", "driver", "profile", "model", "kind", "weights", "mode", "op", "check")
	require.Len(t, table, 3)
	assert.True(t, table[0]["op"] == "layer" && table[1]["us"] == "3" && table[2]["us"] == "")
	assert.Contains(t, layer("benchstat"), "BenchmarkLayer/model=small/kind=c4a/")
}

// TestPages holds that each suite makes a page of its rows that needs nothing beside itself, with
// a bar for what was timed and the tables of the Markdown, and takes no name for its own.
func TestPages(t *testing.T) {
	us := func(v float64) Time { return Time{Median: v, P95: v, Samples: []float64{v}} }
	const hostile = `<script>alert("x")</script> | & ]]>`
	ops := []OpTime{{Name: "wq_b", Layer: "c4a", Time: us(3),
		Work: Work{Weights: 1e6, Flop: 1e7}, Limit: 1, Share: 0.3, Dispatches: 2}}
	layers := []LayerRow{
		{Model: "flash", Kind: "c4a", Mode: "decode", Batch: 1, Context: 9, Status: "ok", Time: us(10), Limit: 5, Share: 0.5, Ops: ops},
		{Model: "flash", Kind: "c4a", Mode: "decode", Status: "wrong", Detail: hostile},
	}
	steps := []StepRow{{Model: "small", Batch: 1, Context: 9, Status: "ok", Time: us(10), Chained: us(11), Limit: 5, Ops: ops}}
	prompts := []PrefillRow{{Model: "small", Tokens: 40, Status: "ok", Time: us(40), TokensPerS: 1e6, Limit: 4,
		Chunks: []ChunkTime{{0, 24, us(20), 2}, {24, 16, us(20), 2}}, Shared: "43 layers have the weights of 3"}}
	singles := []OpRow{
		{Op: "linear", Case: "tokens=1/" + strings.Repeat("long", 20), Status: "ok", Time: us(20), Bytes: 1e6, Flop: 1e7},
		{Op: "linear", Case: hostile, Status: "skipped", Detail: hostile},
	}
	single := func(on ReportOn) (*Report[OpRow], error) { return NewOpReport(on, "linear") }
	for _, c := range []struct {
		page   string
		bars   int
		points int
		want   []string
	}{
		{reported(t, layers, "html", NewLayerReport), 1, 1, []string{"batch 1, context 9", "WRONG: flash, c4a layer", hostile}},
		{reported(t, steps, "html", NewStepReport), 3, 1, []string{"chained", "step"}},
		{reported(t, prompts, "html", NewPrefillReport), 2, 0,
			[]string{"1e+06 tokens/s", "tokens 24 to 40", "43 layers have the weights of 3"}},
		{reported(t, singles, "html", single), 1, 1, []string{"SKIPPED", hostile}},
	} {
		text := pagetest.Text(t, []byte(c.page))
		for _, want := range append(c.want, testAdapter.Name, "generic", "measured limits") {
			assert.Contains(t, text, want)
		}
		drawn := pagetest.Pictures(t, []byte(c.page))
		assert.Equal(t, []int{c.bars, c.points}, []int{drawn["rect"], drawn["circle"]}, c.want)
	}
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
	limits := Limits{CopyGBs: 1, MatrixTFLOPs: 1}
	peers := PeerTable{Source: "nobody", Rows: []PeerRow{
		{Op: "quantize_and_insert_k_cache", Case: "tokens=2", Peers: []Peer{{"somebody", 1e9}}},
		{Op: "fused_indexer_q_rope_quant_fp8", Case: "tokens=2/heads=64", Peers: []Peer{{"fast", 1e-3}, {"slow", 4e9}}},
		{Op: "indexer_logits_fp8", Case: "tokens=2/context=4096/heads=64", Peers: []Peer{{"somebody", 3}}},
		{Op: "indexer_topk", Case: "of another size", Peers: []Peer{{"x", 1}}},
	}}
	for _, format := range Formats {
		var out bytes.Buffer
		report, err := NewCompareReport(ReportOn{&out, format, dev.Adapter(), "", limits}, peers)
		require.NoError(t, err)
		require.NoError(t, Compare(ctx, dev,
			CompareOptions{
				Peers: peers, Ops: []string{"quantize", "fused_indexer", "indexer_topk", "indexer_logits"},
				Common: Common{Reps: 2, Warmup: -1, Seed: 1},
			},
			limits, Silent{}, report.Add))
		require.NoError(t, report.Close())
		switch format {
		case "md":
			text := words(out.String())
			for _, want := range []string{"| quantize_and_insert_k_cache | tokens=2 | somebody | 1e+09 |", "| 0.00 |", "slow 4e+09", "indexer_logits_mxfp4 | tokens=2/context=4096/heads=64 | our indexer_logits_fp8 |", "MXFP4 paged logits: ", "indexer queries: ", "missed", "not run here: 1 of indexer_topk", "Peers: nobody"} {
				assert.Contains(t, text, want, "report lacks")
			}
			require.NotContains(t, out.String(), "tokens=1 ", "cases that nobody measured")
			assert.NotContains(t, out.String(), "linear", "cases that nobody measured")
		case "json":
			assert.True(t, json.Valid(out.Bytes()), "not JSON")
		}
	}
	var bad *vk.ArgumentError
	err := Compare(ctx, dev, CompareOptions{Peers: peers, Ops: []string{"soup"}}, limits, Silent{}, nil)
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
