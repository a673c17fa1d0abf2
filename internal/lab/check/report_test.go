package check

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/picture/pagetest"
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// hostile names something in a way that a page must not take for its own.
const hostile = `<script>alert("x")</script> & 'co' ]]> %s`

// example returns a report with everything that there can be.
func example() *Report {
	value, bound := 0.25, 1.0
	r := &Report{Form: Form,
		Program: describe.Program{Version: "v1.2.3", Commit: "0123456789abcdef", Go: "go1.26", OS: "linux", Arch: "amd64", CPUs: 2},
		Begun:   time.Date(2026, 11, 22, 21, 0, 0, 0, time.UTC), Seconds: 61.5, Ended: true, Seed: 7, Budget: "2m0s", Devices: 1,
		Device: &describe.Device{Name: hostile, Type: "discrete", Driver: hostile, APIVersion: "1.3.0", Usable: true,
			Profile:  describe.Profile{Name: "generic", Why: "no other profile fits"},
			Limits:   describe.Limits{Heaps: []describe.Heap{{Bytes: 8 << 30, DeviceLocal: true}, {Bytes: 16 << 30}}, SharedMemory: 49152},
			Features: map[string]bool{"shaderFloat16": true, "cooperativeMatrix": false}, CoopMat: []string{"16x16x16"},
			Ops: map[string]describe.Variants{"linear": {Runs: "base", Can: []string{"base"},
				Missing: map[string][]string{"cm": {"cooperativeMatrix"}}}}}}
	add := func(group, name string, s Status, why string) *Result {
		r.Results = append(r.Results, Result{Group: group, Name: name, Status: s, Why: why, Seed: 7, Seconds: 1})
		return &r.Results[len(r.Results)-1]
	}
	add(GroupLimits, "memory", Right, "").Limits = &bench.Limits{CopyGBs: 431.7, MatrixTFLOPs: 41.2, MatrixKind: "f16 16x16x16"}
	add(GroupOperations, "linear", Right, "").Rows = []Row{{Row: verify.Row{Case: "a", Variant: "base", Class: "T", Status: verify.Pass,
		Error: &value, Bound: &bound}, Seconds: 0.5}}
	add(GroupOperations, hostile, Wrong, hostile).Rows = []Row{{Row: verify.Row{Case: hostile, Status: verify.Fail, Detail: hostile}}}
	add(GroupCuts, "forks", Crashed, "the process ended").Output = hostile
	add(GroupCuts, "prompts", TimedOut, "it hung").About = "stands for " + hostile
	add(GroupCuts, "drafts", NotRun, "the device hung")
	for i, kind := range timedKinds {
		for _, s := range []bench.LayerRow{{Mode: "decode", Batch: 1, Tokens: 1, Context: 4096},
			{Mode: "decode", Batch: 32, Tokens: 32, Context: 131072},
			{Mode: "prefill", Batch: 1, Tokens: 4096, Context: 4096}} {
			s.Kind, s.Status, s.Model = kind, "ok", "flash"
			for j, op := range []string{"compressor.wkv|wgate", "q_kv_norm", "wq_b", "indexer.select", "attention", "wo_a", "wo_b"} {
				us := float64(s.Tokens) * float64(3*i+j+1) * 1.7
				w := bench.Work{Weights: 1e6 * float64(j+1), Activations: 1e4 * float64(s.Tokens), Flop: 2e6 * float64(s.Tokens*j)}
				s.Ops = append(s.Ops, bench.OpTime{Name: op, Time: bench.Time{Median: us}, Work: w, Share: 0.4, Dispatches: 1})
				s.Time.Median += us
			}
			s.Limit, s.Share = s.Time.Median*0.4, 0.4
			add(GroupTimes, kind+", "+stepName(s), Right, "").Times = []bench.LayerRow{s}
		}
	}
	return r
}

// TestPage holds that the page is well-formed, needs nothing beside itself, takes no name for
// its own, and says everything.
func TestPage(t *testing.T) {
	r := example()
	page, err := r.HTML()
	require.NoError(t, err)
	text := pagetest.Text(t, page)
	for _, want := range []string{hostile, "v1.2.3", "0123456789abcdef", "linux/amd64", "no other profile fits",
		"8 GiB of the device", "16 GiB of the host", "copy 432 GB/s", "f16 16x16x16", "shaderFloat16", "cm: cooperativeMatrix", "seed 7",
		"the device hung", "stands for", "What is wrong", "What was not run",
		"11 right, 1 wrong, 1 timed out, 1 crashed, 1 not run", "0.25"} {
		assert.True(t, strings.Contains(text, want), "the page does not say %q", want)
	}
	// Of what is not there the page says so, and nothing of what it would be.
	page, err = (&Report{Problem: "no Vulkan device", Results: []Result{{Group: GroupCuts, Name: "x", Status: NotRun, Why: "y"}}}).HTML()
	require.NoError(t, err)
	text = pagetest.Text(t, page)
	assert.Contains(t, text, "no check could be run: no Vulkan device")
	assert.Contains(t, text, "The run was not over")
	assert.NotContains(t, text, "Roofline")
}

// TestPictures holds that all that is drawn lies inside the pictures, and no text on another.
func TestPictures(t *testing.T) {
	page, err := example().HTML()
	require.NoError(t, err)
	drawn := pagetest.Pictures(t, page)
	assert.Equal(t, 2, drawn["svg"])
	assert.Equal(t, 9*6, drawn["circle"], "operations with products")
	assert.Equal(t, 9*7, drawn["rect"], "parts of bars")
	assert.Greater(t, drawn["text"], 30)
}

// TestFiles holds that a report is written whole, reads back the same, and leaves nothing else.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	f, err := NewFiles(filepath.Join(dir, "r"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(f.JSON, []byte("older"), 0o600))
	r := example()
	require.NoError(t, f.Write(r))
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 2)
	data, err := os.ReadFile(f.JSON)
	require.NoError(t, err)
	var back Report
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&back))
	for i := range r.Results { // samples stay behind
		for j := range r.Results[i].Times {
			r.Results[i].Times[j].Time.Samples = nil
		}
	}
	assert.Equal(t, *r, back)

	for _, prefix := range []string{filepath.Join(dir, "none", "r"), filepath.Join(dir, "r.json", "r")} {
		_, err := NewFiles(prefix)
		assert.ErrorContains(t, err, "check: report: ")
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "x.html"), 0o700))
	_, err = NewFiles(filepath.Join(dir, "x"))
	assert.ErrorContains(t, err, "not a regular file")
}

func TestDefaultPrefix(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("x", 3600))
	for device, want := range map[string]string{"AMD Radeon RX 7900 XTX (RADV NAVI31)": "amd-radeon-rx-7900-xtx-radv-navi31",
		"../../é": "no-device", strings.Repeat("long ", 30): "long-long-long-long-long-long-long-long"} {
		assert.Equal(t, "vkmla-check-"+want+"-20260102T020405Z", DefaultPrefix(device, at))
	}
	assert.Regexp(t, regexp.MustCompile(`^vkmla-check-no-device-`), DefaultPrefix("", at))
}
