package bench

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

// TestWidths holds that a report for people is no wider than a terminal, with long names and large
// numbers in all its columns, and whatever went wrong.
func TestWidths(t *testing.T) {
	defer describe.Fit(describe.Width)
	for _, columns := range []int{79, 100} {
		describe.Fit(columns)
		widths(t)
	}
}

func widths(t *testing.T) {
	const much = 123456789012.5
	us := Time{Median: much, P95: much, Samples: []float64{much}}
	long := strings.Repeat("long words of a name ", 9)
	op := OpTime{Name: "indexer.compressor.compress", Layer: "v41-reindex-within", Time: us, Dispatches: 1 << 20, Barriers: 1 << 20,
		Work: Work{Weights: much, Cache: much, Activations: much, Flop: much}, Share: 99}
	memory := map[string]uint64{"weights of all layers": 1 << 40, "caches": 1 << 40, "steps": 1 << 40, "tables": 1 << 40, "hidden": 1 << 40}
	texts := map[string]string{}
	var ops []OpRow
	var layers []LayerRow
	var steps []StepRow
	var prompts []PrefillRow
	for _, status := range []string{"ok", "wrong"} {
		ops = append(ops, OpRow{Op: "dequantize_and_gather_k_cache", Case: "heads=128/topk=2048/window=128/batch=4096/records=fp8+fp4",
			Part: "compressor.compress", Variant: "twopass-cmb", Status: status, Time: us,
			Bytes: much, GBs: much, TFLOPs: much, FloorUS: much,
			ShareFloor: much, Peers: []Peer{{"FlashMLA of a long name", much}, {"another peer", much}}, Detail: long})
		layers = append(layers, LayerRow{Model: "v41-flash", Kind: "v41-reindex-within", Weights: "nvfp4-e4m3", Mode: "prefill",
			Tokens:  1 << 20,
			Context: 1 << 20, Status: status, Time: us, Ops: []OpTime{op}, Memory: memory, Variant: "twopass-cmb", Detail: long})
		steps = append(steps, StepRow{Model: "v41-flash+5", Weights: "nvfp4-e4m3", Batch: 4096, Context: 1 << 20,
			Layers: 43, Status: status, Time: us,
			Host: us, Latency: us, Chained: us, ChainedHost: us, ChainedWall: us, Apart: us, ApartHost: us, ApartWall: us, Floor: us,
			ChainedFloor: us, TimesFloor: much, TimesChainedFloor: much, Ops: []OpTime{op}, Memory: memory, Shared: long,
			Longest: much, Detail: long})
		prompts = append(prompts, PrefillRow{Model: "v41-flash", Weights: "nvfp4-e4m3", Tokens: 1 << 20, Chunk: 1 << 16,
			Layers: 43, Status: status,
			Time: us, Latency: us, TokensPerS: much, Chunks: []ChunkTime{{0, 1 << 20, us, much}}, Memory: memory,
			Shared: long, Detail: long})
	}
	peers, err := Peers()
	require.NoError(t, err)
	for _, s := range OpSuites {
		texts[s.Name] = reported(t, ops, "md", func(on ReportOn) (*Report[OpRow], error) { return NewOpReport(on, s.Name) })
	}
	texts["compare"] = reported(t, ops, "md", func(on ReportOn) (*Report[OpRow], error) { return NewCompareReport(on, peers) })
	texts["layer"], texts["step"] = reported(t, layers, "md", NewLayerReport), reported(t, steps, "md", NewStepReport)
	texts["prefill"] = reported(t, prompts, "md", NewPrefillReport)
	for name, text := range texts {
		assert.Contains(t, strings.Join(strings.Fields(text), " "), "WRONG: ", name)
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n")
			assert.LessOrEqual(t, utf8.RuneCountInString(line), describe.Width, "%s: %s", name, line)
		}
	}

}
