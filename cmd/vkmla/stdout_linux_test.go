package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/fakemodel"
	"github.com/vkmla/vkmla/internal/lab/vectors"
)

// TestOutputs holds that every command whose output is not taken ends with exit status 2: on a full
// disk, where standard output is closed, and where who reads it has gone, which goes without words.
func TestOutputs(t *testing.T) {
	dir := t.TempDir()
	m := fakemodel.New(fakemodel.Options{Config: fakemodel.Config(0)})
	require.NoError(t, m.Write(dir, 1))
	writeArrays(t, dir+"/in.npz", vectors.Arrays{"L0.in": vectors.New(vectors.U16, 1, fakemodel.Config(0).Hidden),
		"L0.out": vectors.New(vectors.U16, 1, fakemodel.Config(0).Hidden)})
	self, err := os.Executable()
	require.NoError(t, err)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	unread, pipe, err := os.Pipe()
	require.NoError(t, err)
	unread.Close()
	defer pipe.Close()
	op := " --op get_compressed_slot_mapping "
	lines := []string{"--help", "--version", "version", "info", "info --summary", "info -o csv", "verify --list", "verify" + op,
		"verify" + op + "-o json", "verify" + op + "-o csv", "bench --list -o csv", "man", "completion bash",
		"plan --model flash --context 4096 --sessions 1 --device-like RDNA3 --memory 24GiB",
		"run --model " + dir + " --inputs " + dir + "/in.npz --expect " + dir + "/in.npz",
		"check --quick --budget 1s --report " + dir + "/r"}
	for _, line := range lines {
		for how, stdout := range map[string]*os.File{"full": full, "closed": nil, "pipe": pipe} {
			if strings.HasPrefix(line, "check") && how != "full" {
				continue // it takes long
			}
			cmd := exec.Command(self, strings.Fields(line)...)
			if how == "closed" {
				cmd = exec.Command("sh", append([]string{"-c", `exec "$0" "$@" >&-`, self}, strings.Fields(line)...)...)
			} else {
				cmd.Stdout = stdout
			}
			var stderr bytes.Buffer
			cmd.Stderr, cmd.Env = &stderr, append(os.Environ(), asCommand+"=1")
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Run(), &exit, "%s: %s", how, line)
			assert.Equal(t, exitUsage, exit.ExitCode(), "%s: %s: %s", how, line, stderr.String())
			assert.Equal(t, how != "pipe", strings.Contains(stderr.String(), "output: "), "%s: %s: %s", how, line, stderr.String())
		}
	}
}
