package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/fakegguf"
	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/knowncaps"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	probe "github.com/vkmla/vkmla/internal/probe/engine"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

func planned(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	m := fakemodel.New(fakemodel.Options{Config: fakemodel.Tiny(0, 4, 128)})
	require.NoError(t, m.Write(dir, 1))
	return dir
}

// TestPlanMost demands the greatest number of sessions that fits, whatever is free.
func TestPlanMost(t *testing.T) {
	dev := testkit.Device(t)
	c := testkit.Must[*model.Checkpoint](t)(model.Open(planned(t), model.CheckpointOptions{}))
	defer c.Close()
	layers := testkit.Must[[]*model.DeviceLayer](t)(c.Plan())
	p := planner{planFlags: planFlags{step: 4, ranks: 1}, dev: dev, cfg: c.Config, layers: layers, shared: true}
	least := testkit.Must[planRow](t)(p.row(t.Context(), 700, 1)).Total
	for _, more := range []uint64{0, 1, 1 << 20, 15 << 20} {
		p.free = least + more
		n := testkit.Must[int](t)(p.most(t.Context(), 700))
		assert.True(t, testkit.Must[planRow](t)(p.row(t.Context(), 700, n)).Fits, "%d more: %d sessions", more, n)
		assert.False(t, testkit.Must[planRow](t)(p.row(t.Context(), 700, n+1)).Fits, "%d more: %d sessions, and one", more, n)
		assert.Equal(t, more == 15<<20, n > 1)
	}
	p.free = least - 1
	assert.Equal(t, 1, testkit.Must[int](t)(p.most(t.Context(), 700)))
}

// TestPlanDrafts demands that an engine that has run all its steps, those of drafts too, takes what
// was planned for it.
func TestPlanDrafts(t *testing.T) {
	testkit.WithoutMatrices(t)
	const context = 40
	dev, dir := testkit.Device(t), t.TempDir()
	c := fakemodel.TinyV41()
	c.Layers = model.V41Layers(model.Sources{Entries: []int{1}, Picks: []int{1}, Candidates: -1}, 0, 1)
	m := fakemodel.New(fakemodel.Options{Config: c.WithDrafts(2), Storage: fakemodel.FP8})
	require.NoError(t, m.Write(dir, 1))
	f := planFlags{model: dir, step: c.DraftBlock, ranks: 1, drafts: true}
	cfg, planned, err := f.layers(io.Discard)
	require.NoError(t, err)
	r := testkit.Must[planRow](t)((&planner{planFlags: f, dev: dev, cfg: cfg, layers: planned, shared: true}).row(t.Context(), context, 1))

	ck := testkit.Must[*model.Checkpoint](t)(model.Open(dir, model.CheckpointOptions{Layers: []int{0, 1, 2, 3}}))
	defer ck.Close()
	layers := testkit.Must[[]*model.DeviceLayer](t)(ck.Upload(t.Context(), dev, nil))
	defer func() { assert.NoError(t, model.CloseLayers(layers)) }()
	e := testkit.Must[*pipeline.Engine](t)(pipeline.NewEngine(t.Context(), dev, ck.Config, layers,
		pipeline.EngineOptions{MaxTokens: context, MaxSessions: 1, MaxStep: f.step, MaxCacheBytes: r.Caches}))
	defer func() { assert.NoError(t, e.Close()) }()
	require.NoError(t, e.Warm(t.Context()))
	s := testkit.Must[*pipeline.Session](t)(e.Open())
	require.NoError(t, probe.Advance(t.Context(), s, context-c.DraftBlock))
	st := testkit.Must[*pipeline.Step](t)(e.Begin(t.Context(), pipeline.Chunk{Session: s, Tokens: c.DraftBlock, Draft: true}))
	require.NoError(t, errors.Join(probe.ReuseInputs(st), st.Run(t.Context()), st.Commit()))
	now := e.Memory()
	assert.Equal(t, []uint64{r.Total, r.Weights, r.Caches}, []uint64{now.Total(), now.Weights, now.Caches})
}

// TestPlanLike holds that a plan for a device that is not here needs no driver, for every kind of
// device and each kind of model, and says what one on such a device would.
func TestPlanLike(t *testing.T) {
	folder, file := planned(t), filepath.Join(t.TempDir(), "a.gguf")
	cfg := fakemodel.Config(0, 4)
	tensors := fakegguf.Attention(cfg, 7, func(string) string { return "F32" })
	require.NoError(t, os.WriteFile(file, fakegguf.Encode(fakegguf.Keys(cfg), tensors), 0o666))
	h100 := knowncaps.Owned()[0]
	here := testkit.As(t, h100)
	f := planFlags{model: folder, step: 4, ranks: 1, like: h100.Name}
	cfg, layers, err := f.layers(io.Discard)
	require.NoError(t, err)
	there, close, err := f.open()
	require.NoError(t, err)
	defer close()
	var rows []planRow
	for _, dev := range []*vk.Device{here, there} {
		p := planner{planFlags: f, dev: dev, cfg: cfg, layers: layers}
		_, p.shared = freeMemory(there)
		rows = append(rows, testkit.Must[planRow](t)(p.row(t.Context(), 700, 3)))
	}
	assert.Equal(t, rows[0], rows[1])
	_, err = there.NewBuffer(vk.BufferSpec{Label: "b", Size: 4})
	assert.ErrorIs(t, err, vk.ErrArgument)
	assert.ErrorContains(t, err, "which is not here")

	none := filepath.Join(t.TempDir(), "none.json")
	t.Setenv("VK_DRIVER_FILES", none)
	t.Setenv("VK_ICD_FILENAMES", none)
	for _, d := range knowncaps.Owned() {
		for _, m := range [][]string{{folder}, {file, "--sessions", "2"}, {"flash", "--sessions", "2"}} {
			code, stdout, stderr := command(append([]string{"plan", "--context", "4096", "--step", "16", "--memory", "24GiB",
				"--device-like", d.Name, "--model"}, m...)...)
			assert.Equal(t, exitOK, code, "%s, %s: %s", d.Name, m, stderr)
			assert.Contains(t, stdout, "a device like "+d.Name)
			assert.Contains(t, stdout, "24 GiB")
		}
	}
	for args, want := range map[string]string{
		"--device-like soup --memory 1GB":            `device-like: got "soup", want one of H100; Ada; `,
		"--device-like H100":                         "memory: got none, want the free memory of the device that is like H100",
		"--device-like H100 --memory 1GB --device 0": "want none beside --device",
		"--device-like H100 --memory 24":             `memory: got "24", want a size such as 24GiB or 80GB`,
		"--memory 1GB":                               "--device-like plans for one that is not here",
	} {
		code, _, stderr := command(append([]string{"plan", "--model", "flash", "--context", "4096"}, strings.Fields(args)...)...)
		assert.Equal(t, exitUsage, code, args)
		assert.Contains(t, stderr, want)
	}
}

func TestPlan(t *testing.T) {
	testkit.Device(t)
	dir := planned(t)
	plan := func(code int, args ...string) (string, string) {
		var out, errs strings.Builder
		args = append([]string{"plan", "--model", dir, "--step", "2"}, args...)
		assert.Equal(t, code, run(t.Context(), args, &out, &errs), "%v: %s", args, errs.String())
		return out.String(), errs.String()
	}
	text, _ := plan(exitOK, "--context", "300,5000", "--sessions", "2,3")
	assert.Contains(t, text, "of a session")
	assert.Contains(t, text, "vkmla "+describe.Running().Version)
	assert.Contains(t, text, "5000")
	text, _ = plan(exitOK, "--context", "300,5000", "--sessions", "2,3", "-o", "csv")
	rows := testkit.CSV(t, text)
	require.Len(t, rows, 4)
	assert.Equal(t, []string{"5000", "3", describe.Running().Version}, []string{rows[3]["context"], rows[3]["sessions"], rows[3]["version"]})
	var out struct {
		describe.Origin
		Program describe.Program
		Rows    []planRow
	}
	text, _ = plan(exitWrong, "--context", "300", "--sessions", "2", "--reserve", "1000000000", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(text), &out))
	require.Len(t, out.Rows, 1)
	assert.NotEmpty(t, out.Version)
	assert.Equal(t, out.Version, out.Program.Version)
	assert.False(t, out.Rows[0].Fits)
	for store, perToken := range map[string]uint64{"v41": 890, "v4": 1790} { // and what rounds up pages of v4
		text, _ = plan(exitWrong, "--model", "v41-flash", "--context", "65536,131072", "--sessions", "1", "--store", store,
			"--reserve", "1000000000", "-o", "json")
		require.NoError(t, json.Unmarshal([]byte(text), &out))
		require.Len(t, out.Rows, 2)
		assert.InEpsilon(t, perToken, (out.Rows[1].Session-out.Rows[0].Session)/65536, 0.01, store)
	}
	text, _ = plan(exitWrong, "--model", "v41-flash", "--context", "131072", "--sessions", "1", "--drafts", "--reserve", "1000000000",
		"-o", "json")
	weights := out.Rows[1].Weights
	require.NoError(t, json.Unmarshal([]byte(text), &out))
	assert.InEpsilon(t, weights/40*43, out.Rows[0].Weights, 0.01, "three layers more")
	const beyond = "MaxTokens: got 9999999999, want 1 to "
	for _, output := range []string{"table", "csv", "json"} {
		text, _ = plan(exitWrong, "--context", "300,9999999999", "--sessions", "2", "-o", output)
		assert.Contains(t, text, beyond, output)
		assert.Contains(t, text, "300", output)
	}
	require.NoError(t, json.Unmarshal([]byte(text), &out))
	require.Len(t, out.Rows, 2)
	assert.True(t, out.Rows[0].Fits && out.Rows[0].Total > 0 && out.Rows[0].Problem == "", "%+v", out.Rows[0])
	x := out.Rows[1]
	assert.True(t, !x.Fits && x.Total == 0 && x.Sessions == 2 && x.Context == 9999999999, "%+v", x)
	text, _ = plan(exitWrong, "--context", "9999999999")
	assert.Contains(t, text, "context 9999999999, sessions 1: pipeline: new engine: "+beyond)
	for want, args := range map[string][]string{
		"plan: store: got \"v5\", want v4 or v41": {"--context", "3", "--store", "v5"},
		"plan: context: got none":                 nil,
		"plan: sessions: got 0":                   {"--context", "3", "--sessions", "0"},
		"plan: output: got \"yaml\"":              {"--context", "3", "-o", "yaml"},
		"plan: context: got 0":                    {"--context", "0"},
		"plan: drafts: got true, want a model":    {"--context", "3", "--drafts", "--model", "flash"},
		"pipeline: new engine: MaxStep: got":      {"--context", "9", "--step", "-1"},
		"model: plan weights: ranks: got 3":       {"--context", "9", "--model", "flash", "--ranks", "3"},
	} {
		_, errs := plan(exitUsage, args...)
		assert.Contains(t, errs, want)
	}
}
