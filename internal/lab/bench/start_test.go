package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

// TestMain is a worker, too, in the processes that TestStarts starts: one that says whether the
// caches of its folder were empty.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "start" {
		if err := pretendStart(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.Main(m)
}

func pretendStart(dir string) error {
	var order startOrder
	if err := json.NewDecoder(os.Stdin).Decode(&order); err != nil {
		return err
	}
	for _, name := range driverCaches {
		if os.Getenv(name) != dir {
			return fmt.Errorf("%s is %q, want %q", name, os.Getenv(name), dir)
		}
	}
	parts := startParts{Open: 1, Upload: 2, Engine: 3e3, Compile: 900e3, Record: 5e3, Submit: 6e3, First: 7, Layers: order.Batch,
		Kernels: map[string]float64{"a": 1500, "b": 2500}}
	file := filepath.Join(dir, "pipelines-0")
	if _, err := os.Stat(file); err == nil {
		parts.Compile = 9e3
	} else if order.Context == 66 {
		return fmt.Errorf("no device")
	}
	if parts.Compile < 10e3 && order.Context == 67 {
		return fmt.Errorf("no luck")
	}
	fmt.Println("a driver's greeting")
	if err := os.WriteFile(file, make([]byte, 100), 0o600); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(parts)
}

// TestStarts holds that each start has a process of its own, that the caches of one are empty and
// those of the next full, and what reports say of both.
func TestStarts(t *testing.T) {
	o := StartOptions{LayerOptions{Models: []string{"small"}, Batches: []int{2}, Common: Common{Reps: 2}}, []string{os.Args[0], "start"}}
	dev := testkit.Device(t)
	out := make([]bytes.Buffer, len(Formats))
	var reports []*Report[StartRow]
	for i, format := range Formats {
		r, err := NewStartReport(ReportOn{&out[i], format, dev.Adapter(), "", Limits{CopyGBs: 1, MatrixTFLOPs: 1}})
		require.NoError(t, err)
		reports = append(reports, r)
	}
	var rows []StartRow
	require.NoError(t, Starts(t.Context(), dev, o, Silent{}, func(x StartRow) {
		rows = append(rows, x)
		for _, r := range reports {
			r.Add(x)
		}
	}))
	require.Len(t, rows, 2)
	for i, x := range rows {
		compile := []float64{900, 9}[i]
		assert.Equal(t, []string{cachesEmpty, cachesFull}[i], x.Caches)
		assert.Equal(t, []float64{compile, compile}, x.Compile.Samples)
		assert.InDelta(t, 14+compile, x.Ready.Median, 1e-9, "engine, compile, record and submit")
		assert.Equal(t, 2, x.Layers)
		assert.Equal(t, uint64(100), x.CacheBytes)
		assert.Equal(t, "2 kernels, 4.0 ms of the compiler one after the other, b 2.5, a 1.5", x.compiled())
	}
	for i, format := range Formats {
		require.NoError(t, reports[i].Close())
		text := out[i].String()
		switch format {
		case "md":
			assert.Contains(t, text, "| small | fp8 | 2 | 700 | 2 | empty | 0.0 | 0.0 | 0.0 | 0.9 | 0.0 | 0.0 | 0.9 | 0.0 | 0.0001 | ok |")
		case "csv":
			table := csvColumns(t, text, "device", "driver", "profile", "model", "weights", "caches", "part", "check")
			require.Len(t, table, 16, text)
			assert.Equal(t, []string{"full", "compile", "9"}, []string{table[11]["caches"], table[11]["part"], table[11]["us"]})
		case "json":
			assert.True(t, json.Valid(out[i].Bytes()))
		case "benchstat":
			assert.Equal(t, 2, strings.Count(text,
				"BenchmarkStart/model=small/weights=fp8/batch=2/context=700/caches=full 1 23000 ns/op\n"))
		}
	}

	o.Contexts, rows = []int{66, 67, 68}, nil // the worker fails without caches, with caches, never
	require.ErrorIs(t, Starts(t.Context(), dev, o, Silent{}, func(x StartRow) { rows = append(rows, x) }), ErrWrong)
	var got []string
	for _, x := range rows {
		got = append(got, fmt.Sprintf("%d %s %s %d %s", x.Context, x.Caches, x.Status, len(x.Ready.Samples), x.Detail))
	}
	assert.Equal(t, []string{"66 empty failed 0 worker: exit status 1: no device", "67 empty ok 1 ",
		"67 full failed 0 worker: exit status 1: no luck", "68 empty ok 2 ", "68 full ok 2 "}, got)
	md := reported(t, rows, "md", NewStartReport)
	assert.Contains(t, md, "| empty | - | - | - | - | - | - | - | - | - | failed |")
	assert.Contains(t, md, "FAILED: model=small/weights=fp8/batch=2/context=66/caches=empty: worker: exit status 1: no device\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, Starts(ctx, dev, o, Silent{}, nil), context.Canceled)
	var bad *vk.ArgumentError
	require.ErrorAs(t, Starts(t.Context(), dev, StartOptions{LayerOptions: LayerOptions{Batches: []int{0}}}, Silent{}, nil), &bad)
	assert.Equal(t, "batch", bad.Arg)
}

// TestStartWorker holds that a worker starts an engine, and takes all of its memory with it.
func TestStartWorker(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	before := len(dev.MemoryInUse())
	closed := false
	open := func() (*vk.Device, func(), error) { return dev, func() { closed = true }, nil }
	var out bytes.Buffer
	in := strings.NewReader(`{"Model": "small", "Weights": "fp8", "Batch": 2, "Context": 700, "Keys": 1}`)
	require.NoError(t, StartWorker(t.Context(), in, &out, open))
	assert.True(t, closed)
	assert.LessOrEqual(t, len(dev.MemoryInUse()), before+1, "memory left: %v", dev.MemoryInUse())
	var parts startParts
	require.NoError(t, json.Unmarshal(out.Bytes(), &parts))
	assert.Equal(t, 3, parts.Layers)
	for name, ns := range map[string]float64{"open": parts.Open, "upload": parts.Upload, "engine": parts.Engine, "record": parts.Record,
		"submit": parts.Submit, "first": parts.First} {
		assert.Positive(t, ns, name)
	}
	assert.GreaterOrEqual(t, parts.Compile, 0.0)
	assert.Greater(t, len(parts.Kernels), 8)
	assert.ErrorContains(t, StartWorker(t.Context(), strings.NewReader("{"), &out, open), "bench: start: order")
}
