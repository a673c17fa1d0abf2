package attention_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/attention"
	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/opkit"
	"github.com/vkmla/vkmla/tensor"
	"github.com/vkmla/vkmla/vk"
)

func TestGathered(t *testing.T) { testkit.TestOp(t, "xpu_sparse_prefill") }

func TestGatheredArguments(t *testing.T) {
	dev := testkit.Device(t)
	rows := attention.RowConfig{Window: 8, Ratio: 4, Width: 4, Entries: 16, Windows: 16}
	good := attention.GatheredConfig{Heads: 2, WindowPage: 4, CompressedPage: 2, Rows: rows, Variant: opkit.Base}
	for name, change := range map[string]func(*attention.GatheredConfig){
		"heads":            func(c *attention.GatheredConfig) { c.Heads = 0 },
		"window page":      func(c *attention.GatheredConfig) { c.WindowPage = 0 },
		"no entries' page": func(c *attention.GatheredConfig) { c.CompressedPage = 0 },
		"no ratio":         func(c *attention.GatheredConfig) { c.Rows.Ratio = 0 },
		"no window":        func(c *attention.GatheredConfig) { c.Rows.Window = 0 },
		"room":             func(c *attention.GatheredConfig) { c.Rows.Windows = 7 },
		"entries' room":    func(c *attention.GatheredConfig) { c.Rows.Entries = 3 },
		"variant":          func(c *attention.GatheredConfig) { c.Variant = "fast" },
	} {
		c := good
		change(&c)
		_, err := attention.NewGathered(dev, c)
		assert.ErrorIs(t, err, vk.ErrArgument, name)
	}
	op := must[*attention.Gathered](t)(attention.NewGathered(dev, good))
	r := verify.NewRig(t.Context(), dev)
	defer r.Close()
	kv := func(page int) cache.KVCache {
		l := must[cache.Layout](t)(cache.NewLayout(page, 0))
		return cache.KVCache{Pool: r.Out(tensor.U8, 3, l.Stride), Layout: l}
	}
	args := attention.GatheredArgs{Q: r.Out(tensor.BF16, 3, 2, cache.D), Out: r.Out(tensor.BF16, 3, 2, cache.D),
		Window:     attention.PagedRows{Cache: kv(4), Table: r.Out(tensor.I32, 1, 3)},
		Compressed: attention.PagedRows{Cache: kv(2), Table: r.Out(tensor.I32, 1, 3)},
		Slots:      r.Out(tensor.I32, 3, 4), TopK: r.Out(tensor.I32, 3, 4), Positions: r.Out(tensor.I32, 3),
		Plan: attention.PlanTensors{Places: r.Out(tensor.I32, 3, 4), Heads: r.Out(tensor.I32, 2, 2, 2),
			Runs: r.Out(tensor.I32, 12, 4)},
		Workspace: r.Out(tensor.BF16, 32, cache.D), Scratch: r.Scratch(op.ScratchBytes(3)), Pieces: 2}
	require.NoError(t, r.Err())
	type gatheredArgs = attention.GatheredArgs
	testkit.Changes[gatheredArgs]{
		"Workspace":         {func(a *gatheredArgs) { a.Workspace = a.Workspace.Rows(0, 31) }},
		"Pieces":            {func(a *gatheredArgs) { a.Pieces = 3 }},
		"Scratch":           {func(a *gatheredArgs) { a.Scratch.Size = 16 }},
		"Page":              {func(a *gatheredArgs) { a.Compressed.Cache = cache.KVCache{} }},
		"Cache.Layout.Page": {func(a *gatheredArgs) { a.Compressed.Cache = a.Window.Cache }},
	}.Refuse(t, dev, op.Record, args)
}
