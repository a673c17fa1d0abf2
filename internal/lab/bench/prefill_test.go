package bench

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

// TestPrefillRows holds that a prompt goes through all layers, chunk by chunk, and what is said of
// it.
func TestPrefillRows(t *testing.T) {
	testkit.WithoutMatrices(t)
	dev := testkit.Device(t)
	limits := Limits{CopyGBs: 1, MatrixTFLOPs: 1}
	o := PrefillOptions{LayerOptions{Checked: true, Models: []string{"small"},
		Prefill: []int{40}, Chunk: 24, Common: Common{Reps: 2, Seed: 1}}}
	before := len(dev.MemoryInUse())
	out := make([]bytes.Buffer, len(Formats))
	var reports []*Report[PrefillRow]
	for i, format := range Formats {
		r, err := NewPrefillReport(ReportOn{&out[i], format, dev.Adapter(), "", limits})
		require.NoError(t, err)
		reports = append(reports, r)
	}
	var row PrefillRow
	require.NoError(t, Prefills(t.Context(), dev, o, limits, Silent{}, func(r PrefillRow) {
		row = r
		for _, report := range reports {
			report.Add(r)
		}
	}))
	require.Equal(t, "ok", row.Status, row.Detail)
	assert.NotZero(t, row.Bound)
	assert.Equal(t, []int{3, 40, 24}, []int{row.Layers, row.Tokens, row.Chunk})
	assert.Empty(t, row.Shared)
	assert.LessOrEqual(t, len(dev.MemoryInUse()), before+1, "memory left: %v", dev.MemoryInUse())
	require.Len(t, row.Time.Samples, 2)
	assert.InEpsilon(t, 40/row.Time.Median*1e6, row.TokensPerS, 1e-9)
	assert.Greater(t, row.Latency.Median, row.Time.Median)
	at, sum, limit := 0, 0.0, 0.0
	for _, c := range row.Chunks {
		assert.Equal(t, at, c.First)
		assert.Positive(t, c.Limit)
		at, sum, limit = at+c.Tokens, sum+c.Time.Samples[1], limit+c.Limit
	}
	assert.Equal(t, 40, at, "tokens of all chunks")
	assert.InEpsilon(t, row.Time.Samples[1], sum, 1e-9, "times of all chunks")
	assert.InEpsilon(t, row.Limit, limit, 1e-9)

	for i, format := range Formats {
		require.NoError(t, reports[i].Close())
		text := out[i].String()
		switch format {
		case "md":
			assert.Contains(t, words(text), "| small | fp8 | 40 | 24 | 3 |")
			assert.Contains(t, words(text), "| 24 to 40 |")
		case "csv":
			table := csvColumns(t, text, "device", "driver", "profile", "model", "weights", "shared", "variant", "part", "check")
			require.Len(t, table, 3)
			assert.Equal(t, []string{"prompt", "40", "small"}, []string{table[0]["part"], table[0]["tokens"], table[0]["model"]})
			assert.Len(t, strings.Fields(table[2]["samples_us"]), 2)
		case "json":
			assert.True(t, json.Valid(out[i].Bytes()))
		case "benchstat":
			assert.Regexp(t, `BenchmarkPrefill/model=small/weights=fp8/tokens=40/chunk=24 1 \d+ ns/op [\d.]+ tokens/s\n`, text)
		}
	}
}

// TestPrefillWarmup holds that each size of a step is recorded for good before prompts are timed.
func TestPrefillWarmup(t *testing.T) {
	for _, c := range []struct{ tokens, chunk, want int }{
		{100, 100, 3}, {100, 200, 3}, {200, 100, 2}, {300, 100, 1}, {310, 100, 3}, {1000, 100, 1},
	} {
		o := PrefillOptions{LayerOptions{Chunk: c.chunk, Common: Common{Warmup: 1}}}
		r := newPrefillRun(t.Context(), nil, o, Limits{}, Silent{}, nil,
			PrefillRow{Model: "small", Weights: "fp8", Tokens: c.tokens})
		assert.Equal(t, c.want, r.warmup(), "%+v", c)
	}
}

func TestPrefillOptions(t *testing.T) {
	dev := testkit.Device(t)
	var bad *vk.ArgumentError
	o := PrefillOptions{LayerOptions{Prefill: []int{0}}}
	require.ErrorAs(t, Prefills(t.Context(), dev, o, Limits{}, Silent{}, nil), &bad)
	assert.Equal(t, "prefill", bad.Arg)
}
