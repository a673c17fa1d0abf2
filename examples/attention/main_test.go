package main

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
)

// TestRun runs the example with a small checkpoint, twice: the numbers agree.
func TestRun(t *testing.T) {
	m, err := fakemodel.New(fakemodel.Options{Config: fakemodel.Config(0, 4, 128), Storage: fakemodel.FP8})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := m.Write(dir, 1); err != nil {
		t.Fatal(err)
	}
	device := os.Getenv("VKMLA_TEST_DEVICE")
	var all [2]string
	for i := range all {
		var out strings.Builder
		if err := run(t.Context(), &out, device, dir, 150, 2); err != nil {
			t.Fatal(err)
		}
		all[i] = out.String()
	}
	want := regexp.MustCompile(`^tokens 0 to 127: .* length [0-9.]+
tokens 128 to 149: .* length [0-9.]+
tokens 150 to 150: .* length [0-9.]+
tokens 151 to 151: .* length [0-9.]+
3 layers on .*, [0-9]+ MiB
$`)
	if all[0] != all[1] || !want.MatchString(all[0]) {
		t.Errorf("%q, then %q", all[0], all[1])
	}
	if err := run(t.Context(), &strings.Builder{}, device, t.TempDir(), 1, 1); err == nil {
		t.Error("a folder without a checkpoint")
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(cancelled, &strings.Builder{}, device, dir, 1, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestRandom runs the example with the checkpoint that it writes itself, and without one.
func TestRandom(t *testing.T) {
	dir, remove, err := checkpointFolder("", true)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(t.Context(), &out, os.Getenv("VKMLA_TEST_DEVICE"), dir, 1, 1); err != nil || !strings.Contains(out.String(), "\n3 layers on ") {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	for want, c := range map[string]struct {
		model  string
		random bool
	}{
		"attention: --model: got none, want the folder of a checkpoint, or --random": {"", false},
		"attention: --random: got --model \"elsewhere\" too, want one of them":       {"elsewhere", true},
	} {
		if _, _, err := checkpointFolder(c.model, c.random); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
