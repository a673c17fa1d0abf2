package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/picture/pagetest"
	"github.com/vkmla/vkmla/vk"
)

// TestBenchKeepsRows holds that what was measured is in all outputs, whatever ends the run after
// it, that what is not is named at once, and that nothing is written where nothing began.
func TestBenchKeepsRows(t *testing.T) {
	us := bench.Time{Median: 3120, P95: 3130, Samples: []float64{3120}}
	step := bench.StepRow{Model: "flash", Weights: "fp8", Batch: 1, Context: 131072, Status: "ok",
		Time: us, Host: us, Chained: us, ChainedHost: us}
	large := bench.StepRow{Model: "flash", Weights: "fp8", Batch: 1, Context: 1 << 20, Status: "failed", Detail: "too large"}
	lost := fmt.Errorf("bench: step: %w", vk.ErrDeviceLost)
	for name, c := range map[string]struct {
		rows []bench.StepRow
		err  error
	}{
		"a case":       {[]bench.StepRow{step, large}, bench.ErrWrong},
		"the device":   {[]bench.StepRow{step, large}, lost},
		"all of it":    {nil, &vk.ArgumentError{Op: "bench"}},
		"nothing does": {[]bench.StepRow{step}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var files []string
			for _, format := range bench.Formats {
				files = append(files, filepath.Join(dir, "x."+format))
			}
			var stdout, stderr bytes.Buffer
			outputs, err := openOutputs("bench", &stdout, "csv", files, bench.Formats)
			require.NoError(t, err)
			on := bench.ReportOn{Adapter: &vk.Adapter{Name: "a device"}, Limits: bench.Limits{CopyGBs: 1, MatrixTFLOPs: 1}}
			p := &benchProgress{line: newProgress(&stderr), stderr: plainWriter{&stderr}}
			err = report(on, outputs, p, bench.NewStepReport, func(add func(bench.StepRow)) error {
				for _, row := range c.rows {
					add(row)
				}
				return c.err
			})
			assert.True(t, errors.Is(err, c.err), "%v", err)
			if c.rows == nil {
				assert.Empty(t, stdout.String())
				left, err := os.ReadDir(dir)
				require.NoError(t, err)
				assert.Empty(t, left)
				return
			}
			failed := ""
			if len(c.rows) > 1 {
				failed = "FAILED: model=flash/weights=fp8/batch=1/context=1048576: too large\n"
			}
			assert.Equal(t, failed, stderr.String())
			assert.Equal(t, 1+len(c.rows), strings.Count(strings.TrimSpace(stdout.String()), "\n")+1, stdout.String())
			for i, format := range bench.Formats {
				data, err := os.ReadFile(files[i])
				require.NoError(t, err)
				assert.Contains(t, string(data), "3120", format)
				if format != "csv" {
					assert.Equal(t, len(c.rows) > 1, strings.Contains(string(data), "large"), format)
				}
				switch format {
				case "json":
					assert.True(t, json.Valid(data))
				case "html":
					assert.Contains(t, pagetest.Text(t, data), "3120.0")
				}
			}
		})
	}
}

// TestBenchList holds that cases are listed without a device, of all suites or one, as flags have
// them.
func TestBenchList(t *testing.T) {
	list := func(args string) (list []bench.Listed) {
		code, stdout, stderr := command(strings.Fields("bench --list -o json --device none " + args)...)
		require.Equal(t, exitOK, code, stderr)
		var v struct{ Cases []bench.Listed }
		require.NoError(t, json.Unmarshal([]byte(stdout), &v))
		return v.Cases
	}
	seen := map[string]bool{}
	for _, x := range list("") {
		seen[x.Suite] = true
	}
	for _, name := range suites {
		assert.True(t, seen[name], name)
	}
	assert.Equal(t, bench.Listed{Suite: "memory", Op: "inverse_rope", Case: "tokens=3/heads=8"},
		list("--suite memory --op inverse_rope --batch 3 --heads 8")[0])
	assert.Equal(t, []bench.Listed{{Suite: "step", Op: "step", Case: "model=v41-flash/weights=fp8/batch=1/context=1048576"}},
		list("--suite step --model v41-flash --batch 1 --context 1048576"))
	assert.Equal(t, "compare", list("--compare peers.json")[0].Suite)
	for _, format := range []string{"md", "csv"} {
		_, stdout, _ := command("bench", "--list", "--suite", "step", "-o", format)
		assert.Contains(t, stdout, "model=flash/weights=fp8/batch=32/context=131072", format)
	}
}
