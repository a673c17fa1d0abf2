package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/check"
	"github.com/vkmla/vkmla/internal/lab/describe"
)

// asCommand is set for a process of a test that is to be the command.
const asCommand = "VKMLA_TEST_COMMAND"

// TestMain is the command in the processes that check and bench start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == workerName || os.Getenv(asCommand) != "" {
		main()
		return
	}
	filePause = time.Hour // a busy machine takes longer than the real one for a command
	os.Exit(m.Run())
}

// TestCheckQuick runs the quick checks and reads what they leave.
func TestCheckQuick(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "r")
	code, stdout, stderr := command("check", "--quick", "--seed", "3", "--report", prefix, "-o", "json",
		"--budget", "10m", "--timeout", "5m")
	require.Equal(t, 0, code, "%s%s", stdout, stderr)
	var results []check.Result
	var last checkVerdict
	for line := range strings.Lines(stdout) {
		var r check.Result
		if !strings.Contains(line, `"group":`) {
			require.NoError(t, json.Unmarshal([]byte(line), &last), line)
			continue
		}
		require.NoError(t, json.Unmarshal([]byte(line), &r), line)
		results = append(results, r)
	}
	list := check.All(true)
	assert.Len(t, results, len(list))
	assert.Equal(t, len(list), strings.Count(stderr, ": right, "), "a line for each check: %s", stderr)
	assert.True(t, last.OK)
	assert.Equal(t, len(list), last.Statuses[check.Right])

	data, err := os.ReadFile(last.JSON)
	require.NoError(t, err)
	var r check.Report
	require.NoError(t, json.Unmarshal(data, &r))
	assert.Equal(t, results, r.Results)
	assert.Equal(t, describe.Running().Version, last.Version)
	assert.Equal(t, r.Origin(), last.Origin)
	var text strings.Builder
	require.NoError(t, printCheck(&text, &r, &check.Files{HTML: last.HTML, JSON: last.JSON}))
	for _, want := range []string{last.Device, last.Driver, last.Program(), "all is right", last.HTML} {
		assert.Contains(t, text.String(), want)
	}
	assert.True(t, r.Ended)
	assert.Equal(t, uint64(3), r.Seed)
	assert.Empty(t, r.Device.UUID, "which names one card")
	assert.NotEmpty(t, r.Device.Limits.Heaps)
	assert.Positive(t, r.Limits().CopyGBs)
	assert.NotEmpty(t, r.Times())
	page, err := os.ReadFile(last.HTML)
	require.NoError(t, err)
	assert.True(t, strings.Contains(string(page), "Roofline") && strings.HasSuffix(string(page), "</html>\n"))
	for _, x := range r.Results {
		assert.Equal(t, check.Right, x.Status, "%s %s: %s", x.Group, x.Name, x.Why)
	}
}

// TestCheckRefuses holds what stops check before a device is opened, and that nothing is left.
func TestCheckRefuses(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]string{
		"--report " + filepath.Join(dir, "none", "r"): "check: report: ",
		"--budget 0s":       "budget: got 0s",
		"--timeout -1s":     "timeout: got -1s",
		"--output xml":      "table or json",
		"--profile soup":    "soup",
		"--budget soup":     "--budget",
		"--device nothing ": "matches \"nothing\"",
	} {
		t.Chdir(dir)
		code, stdout, stderr := command(append([]string{"check"}, strings.Fields(args)...)...)
		assert.Equal(t, 2, code, args)
		assert.Empty(t, stdout, args)
		assert.Contains(t, stderr, want, args)
		assert.NotContains(t, stderr, "right", args)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestCheckNoDevice holds that there is a report where there is no device.
func TestCheckNoDevice(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("VK_DRIVER_FILES", filepath.Join(t.TempDir(), "none.json"))
	t.Setenv("VK_ICD_FILENAMES", filepath.Join(t.TempDir(), "none.json"))
	code, stdout, stderr := command("check")
	assert.Equal(t, 2, code)
	assert.Empty(t, stdout)
	assert.Contains(t, stderr, "no Vulkan device")
	assert.NotContains(t, stderr, "not run", "one error says it")
	files, err := filepath.Glob("vkmla-check-no-device-*.json")
	require.NoError(t, err)
	require.Len(t, files, 1)
	data, err := os.ReadFile(files[0])
	require.NoError(t, err)
	var r check.Report
	require.NoError(t, json.Unmarshal(data, &r))
	assert.Contains(t, r.Problem, "no Vulkan device")
	assert.Equal(t, len(check.All(false)), r.Count("", check.NotRun))
}

func TestCheckInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, err bytes.Buffer
	assert.Equal(t, 2, run(ctx, []string{"check", "--report", filepath.Join(t.TempDir(), "r")}, &out, &err))
	assert.Contains(t, err.String(), "vkmla: interrupted\n")
}

// TestCheckVerdicts holds exit codes and what is printed, by reports.
func TestCheckVerdicts(t *testing.T) {
	right := check.Result{Group: check.GroupOperations, Name: "linear", Status: check.Right}
	wrong := check.Result{Group: check.GroupCuts, Name: "forks", About: "vllm#1", Status: check.Wrong, Why: "7 instead of 8"}
	late := check.Result{Group: check.GroupCuts, Name: "padding", Status: check.TimedOut, Why: "nothing was heard"}
	crashed := check.Result{Group: check.GroupCuts, Name: "drafts", Status: check.Crashed, Why: "SIGSEGV"}
	var left []check.Result
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		left = append(left, check.Result{Group: check.GroupTimes, Name: name, Status: check.NotRun, Why: "no time"})
	}
	for _, c := range []struct {
		results []check.Result
		err     error
		want    []string
	}{
		{[]check.Result{right}, nil, []string{"all is right: 1 right, in 3 s; --seed 9 repeats it", "operations  1 right"}},
		{append(left, right), nil, []string{"all that was run is right: 1 right, 6 not run",
			"no time:\n    times a, times b, times c, times d and 2 more"}},
		{[]check.Result{right, wrong}, errWrong, []string{"SOMETHING IS WRONG: 1 right, 1 wrong",
			"cuts forks: wrong\n    7 instead of 8\n    (vllm#1)"}},
		{[]check.Result{right, late}, errLate, []string{"not all ended in time (--timeout allows more): 1 right, 1 timed out",
			"not ended in time\n  cuts padding: timed out\n    nothing was heard"}},
		{[]check.Result{right, late, crashed}, errWrong, []string{"SOMETHING IS WRONG"}},
		{[]check.Result{right, crashed}, errWrong, []string{"cuts drafts: crashed\n    SIGSEGV"}},
	} {
		r := &check.Report{Begun: time.Now(), Seconds: 3, Seed: 9, Device: &describe.Device{Name: "card"}, Results: c.results}
		files, err := check.NewFiles(filepath.Join(t.TempDir(), "r"))
		require.NoError(t, err)
		var out bytes.Buffer
		f := checkFlags{output: "table"}
		assert.Equal(t, c.err, f.conclude(t.Context(), r, files, &out))
		for _, want := range c.want {
			assert.Contains(t, out.String(), want)
		}
		assert.Contains(t, out.String(), files.HTML)
		assert.FileExists(t, files.JSON)
	}
	var out bytes.Buffer
	files, err := check.NewFiles(filepath.Join(t.TempDir(), "r"))
	require.NoError(t, err)
	r := &check.Report{Device: &describe.Device{}, Results: left}
	assert.ErrorContains(t, (&checkFlags{}).conclude(t.Context(), r, files, &out), "nothing was run")
}

// TestCheckHelp holds that the command which check runs stays hidden.
func TestCheckHelp(t *testing.T) {
	_, help, _ := command("help")
	assert.NotContains(t, help, workerName)
	assert.Contains(t, help, "check ")
}
