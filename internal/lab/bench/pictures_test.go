package bench

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/picture/pagetest"
)

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
