package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
)

// TestRun runs the example with a small checkpoint, twice: the numbers agree.
func TestRun(t *testing.T) {
	m := fakemodel.New(fakemodel.Options{Config: fakemodel.Config(0, 4, 128), Storage: fakemodel.FP8})
	dir := t.TempDir()
	require.NoError(t, m.Write(dir, 1))
	device := os.Getenv("VKMLA_TEST_DEVICE")
	var all [2]string
	for i := range all {
		var out strings.Builder
		require.NoError(t, run(t.Context(), &out, device, dir, 150, 2))
		all[i] = out.String()
	}
	want := regexp.MustCompile(`^tokens 0 to 127: .* length [0-9.]+
tokens 128 to 149: .* length [0-9.]+
tokens 150 to 150: .* length [0-9.]+
tokens 151 to 151: .* length [0-9.]+
3 layers on .*, [0-9]+ MiB
$`)
	assert.True(t, all[0] == all[1] && want.MatchString(all[0]), "%q, then %q", all[0], all[1])
	assert.Error(t, run(t.Context(), &strings.Builder{}, device, t.TempDir(), 1, 1), "a folder without a checkpoint")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, run(cancelled, &strings.Builder{}, device, dir, 1, 1), context.Canceled)
}

// TestRandom runs the example with the checkpoint that it writes itself, and without one.
func TestRandom(t *testing.T) {
	dir, remove, err := checkpointFolder("", true)
	require.NoError(t, err)
	var out strings.Builder
	assert.NoError(t, run(t.Context(), &out, os.Getenv("VKMLA_TEST_DEVICE"), dir, 1, 1))
	assert.Contains(t, out.String(), "\n3 layers on ")
	assert.NoError(t, remove())
	_, err = os.Stat(dir)
	assert.ErrorIs(t, err, os.ErrNotExist, "%s is still there", dir)
	for want, c := range map[string]struct {
		model  string
		random bool
	}{
		"attention: --model: got none, want the folder of a checkpoint, or --random": {"", false},
		"attention: --random: got --model \"elsewhere\" too, want one of them":       {"elsewhere", true},
	} {
		_, _, err := checkpointFolder(c.model, c.random)
		assert.EqualError(t, err, want)
	}
}
