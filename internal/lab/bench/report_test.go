package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
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
