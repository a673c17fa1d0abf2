package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// steps is a script whose steps work, fail, and wait for what does not come.
const steps = `#!/usr/bin/env bash
# steps.sh: a script of steps.
#
#   work   works
set -euo pipefail
. scripts/steps
steps_known "work fail wait" "$@"
steps_pause=1 steps_patience=3
step_work() { local end=$((SECONDS + 5)); while [ $SECONDS -lt $end ]; do :; done; }
step_fail() { false; echo "went on"; }
step_wait() { sleep 1000; }
steps_run "$@"
`

// TestSteps holds that a step has no limit of time while it works, tells that it does, and is ended
// when it waits for nothing.
func TestSteps(t *testing.T) {
	root, script := t.TempDir(), filepath.Join("scripts", "steps.sh")
	require.NoError(t, os.Mkdir(filepath.Join(root, "scripts"), 0o777))
	lib, err := os.ReadFile("../../scripts/steps")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "scripts", "steps"), lib, 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(root, script), []byte(steps), 0o777))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"work"}, 0, `(?s)== work\n== work: 1?\d s, \d+ s of processors; at .*== work passed in `},
		{[]string{"fail", "work"}, 1, `^== fail\n(== fail: .*\n)?== fail FAILED after \d+ s\n$`},
		{[]string{"wait", "work"}, 1, `(?s)== wait: \d+ s, 0 s of processors; at sleep\n== wait does nothing: ended\n.*== wait FAILED`},
		{[]string{"--help"}, 0, `^steps.sh: a script of steps.\n\n  work   works\n$`},
		{[]string{"work", "soup"}, 2, `^no step soup; there are: work fail wait `},
	} {
		cmd := exec.Command("bash", append([]string{script}, c.args...)...)
		cmd.Dir = root
		out, _ := cmd.CombinedOutput()
		assert.Equal(t, c.code, cmd.ProcessState.ExitCode(), "%v: %s", c.args, out)
		assert.Regexp(t, c.want, string(out), c.args)
	}
}
