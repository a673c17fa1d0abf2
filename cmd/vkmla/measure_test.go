package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
)

// The commands time builds of kernels once on a device without measurements, unless they are told
// not to, and info says what they found, and what is never tried again.
func TestMeasure(t *testing.T) {
	cache := t.TempDir()
	for _, name := range []string{"XDG_CACHE_HOME", "HOME", "LocalAppData"} { // os.UserCacheDir's
		t.Setenv(name, cache)
	}
	dir := pipelineCacheDir()
	runs := func(args ...string) (stderr string) {
		t.Helper()
		code, stdout, stderr := command(args...)
		require.Zero(t, code, "%v: %s%s", args, stdout, stderr)
		return stderr
	}
	info := func() (text string, d describe.Device) {
		t.Helper()
		code, text, stderr := command("info", "--profile", "generic", "--device", testDevice())
		require.Zero(t, code, stderr)
		code, data, stderr := command("info", "--profile", "generic", "--device", testDevice(), "-o", "json")
		require.Zero(t, code, stderr)
		var all struct{ Devices []describe.Device }
		require.NoError(t, json.Unmarshal([]byte(data), &all))
		require.Len(t, all.Devices, 1)
		return text, all.Devices[0]
	}
	files := func() []string {
		list, err := filepath.Glob(filepath.Join(dir, "builds-*"))
		require.NoError(t, err)
		return list
	}
	text, d := info()
	assert.Contains(t, text, "not timed yet; bench and run do it once")
	assert.Nil(t, d.Builds)
	short := []string{"bench", "--suite", "memory", "--op", "quantize", "--case", "tokens=1", "--reps", "1", "--profile", "generic"}
	runs(append(short, "--measure=false")...)
	runs(append(short, "--profile", "cpu")...) // a profile that was measured
	assert.Empty(t, files(), "timed without being asked")

	runs(short...)
	require.Len(t, files(), 1)
	kept, err := os.ReadFile(files()[0])
	require.NoError(t, err)
	text, d = info()
	require.NotNil(t, d.Builds)
	for _, family := range []string{"decode", "prefill", "products", "scores"} {
		assert.Regexp(t, `(?m)^  builds +`+family+`: .*base [0-9.e+]+ us.*; timed `+d.Builds.Date, text)
		assert.Positive(t, d.Builds.Timed[family].Microseconds["base"])
		assert.Empty(t, d.Builds.Timed[family].Failed)
	}
	_, text, _ = command("info", "--device", testDevice())
	assert.NotContains(t, text, "  builds ", "of a device whose profile was measured")

	// A program that ended while it tried a build has left a mark: that build never runs.
	require.NoError(t, os.WriteFile(files()[0]+".trying", []byte("decode cmb\n"), 0o600))
	model, inputs := runFiles(t)
	of := []string{"run", "--model", model, "--inputs", inputs, "--prefix", "a.",
		"--outputs", filepath.Join(model, "out.npz"), "--profile", "generic"}
	runs(of...)
	require.Len(t, files(), 1)
	text, d = info()
	assert.Contains(t, strings.Join(strings.Fields(text), " "), "never cmb: the program ended while it was tried; timed")
	assert.Equal(t, "the program ended while it was tried", d.Builds.Timed["decode"].Failed["cmb"])
	now, err := os.ReadFile(files()[0])
	require.NoError(t, err)
	assert.NotEqual(t, kept, now)
	runs(of...)
	again, err := os.ReadFile(files()[0])
	require.NoError(t, err)
	assert.Equal(t, now, again, "timed again")

	// What cannot be kept is said, and nothing else fails.
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	assert.Contains(t, runs(short...), "builds of kernels were not timed")
}

// testDevice returns the index of the device that tests use.
func testDevice() string {
	in, err := newInstance()
	if err != nil {
		return ""
	}
	defer in.Close()
	a, err := in.Pick(os.Getenv("VKMLA_TEST_DEVICE"))
	if err != nil {
		return ""
	}
	return a.UUID
}
