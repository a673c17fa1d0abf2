package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/vk"
)

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
		var bad *PeersError
		table, err := ReadPeers(file)
		require.ErrorAs(t, err, &bad, name)
		assert.False(t, !errors.Is(err, ErrPeers) || bad.File != file || len(table.Rows) > 0, name)
	}
	_, err := ReadPeers(filepath.Join(t.TempDir(), "none.json"))
	assert.ErrorIs(t, err, ErrPeers)
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// Tables of measurements name operations as their authors did.
func TestPeersByOtherNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.json")
	text := `{"source": "s", "rows": [{"op": "compress_main4", "case": "decode/tokens=1", "part": "both", "peers": [{"name": "n", "us": 1}]},
		{"op": "decode_c4a", "case": "heads=64/topk=512/window=128/batch=1", "peers": [{"name": "n", "us": 2}]},
		{"op": "linear", "case": "matrix=wq_b/model=pro/weights=fp8/tokens=1", "peers": [{"name": "n", "us": 3}]}]}`
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	table, err := ReadPeers(file)
	require.NoError(t, err)
	for i, want := range [][3]string{{"compressor_main_kv", "ratio=4/decode/tokens=1", "both"},
		{decodeOp, "heads=64/topk=512/window=128/batch=1", ""}, {"linear", "matrix=wq_b/model=pro/weights=fp8/tokens=1", ""}} {
		assert.Equal(t, want, [3]string{table.Rows[i].Op, table.Rows[i].Case, table.Rows[i].Part})
	}
}

// Any bytes are a table that says each case once, with positive times, or a *PeersError.
func FuzzPeers(f *testing.F) {
	f.Add([]byte(`{"source":"s","rows":[{"op":"topk","case":"c","peers":[{"name":"n","us":1.5}]}]}`))
	f.Add([]byte(`{"source":"\u001b[31m","rows":[{},{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := parsePeers("f", data)
		if err != nil {
			var pe *PeersError
			require.ErrorAs(t, err, &pe)
			return
		}
		for _, r := range table.Rows {
			for _, p := range r.Peers {
				assert.True(t, p.US > 0 && printable(r.Op+r.Case+r.Part+p.Name), "%+v", r)
			}
		}
	})
}
