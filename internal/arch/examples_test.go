package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// starts are the packages that a program begins with. Each has examples; those of attention show
// tensors and caches, too.
var starts = []string{"vk", "indexer", "attention", "projection",
	"pipeline", "pipeline/model", "pipeline/prefix", "pipeline/replicas"}

// TestExamplesOutside compiles the examples as another module's files, as who copies one does:
// without internal packages, and without the other tests of the package.
func TestExamplesOutside(t *testing.T) {
	here, err := filepath.Abs(root(t))
	require.NoError(t, err)
	dir := t.TempDir()
	mod, err := os.ReadFile(filepath.Join(here, "go.mod"))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(mod), "\n")
	rest, _, _ = strings.Cut(rest, "\ntool (")
	text := "module example.org/program\n" + rest + "\nrequire " + module + " v0.0.0\nreplace " + module + " => " + here + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o644))
	sums, err := os.ReadFile(filepath.Join(here, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644))
	for _, p := range starts {
		files, err := filepath.Glob(filepath.Join(here, p, "example*_test.go"))
		require.NoError(t, err)
		assert.NotEmpty(t, files, "%s has no example", p)
		to := filepath.Join(dir, p)
		require.NoError(t, os.MkdirAll(to, 0o755))
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(to, filepath.Base(f)), text, 0o644))
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "vet", "-tests=false", "./...")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod -buildvcs=false", "GOPROXY=off", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
}
