package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestClone holds that the README's ways for a module to take vkmla from a clone work, with the
// clone beside it, for a module that says an older Go; the clone is this one.
func TestClone(t *testing.T) {
	readme := read(t, "README.md")
	block := regexp.MustCompile(`(?m)^    git clone \S+ \.\./vkmla\n((?:    .*\n)+)`).FindStringSubmatch(readme)
	require.Len(t, block, 2, "README.md has no lines for a module with a clone")
	work := regexp.MustCompile("`(go work init [^`]*)`").FindStringSubmatch(readme)
	require.Len(t, work, 2)
	clone, err := filepath.Abs(root(t))
	require.NoError(t, err)
	for i, lines := range []string{block[1], work[1]} {
		dir := t.TempDir()
		mine := filepath.Join(dir, "mine")
		require.NoError(t, os.Mkdir(mine, 0o777))
		require.NoError(t, os.Symlink(clone, filepath.Join(dir, "vkmla")))
		put := func(name, text string) {
			require.NoError(t, os.WriteFile(filepath.Join(mine, name), []byte(text), 0o666))
		}
		put("go.mod", "module mine\n\ngo 1.24\n")
		put("main.go", "package main\n\nimport \"github.com/vkmla/vkmla/pipeline\"\n\nfunc main() { println(pipeline.NewEngine) }\n")
		for line := range strings.Lines(lines + "\ngo list -deps .") {
			if line = strings.TrimSpace(line); line == "" {
				continue
			}
			cmd := exec.Command("sh", "-c", line)
			cmd.Dir = mine
			cmd.Env = append(os.Environ(), "GONOSUMDB=*", "GOFLAGS=-mod=mod") // what this module has is known
			if i > 0 {
				cmd.Env = append(cmd.Env, "GOFLAGS=")
			}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", line, out)
		}
		mod, err := os.ReadFile(filepath.Join(mine, "go.mod"))
		require.NoError(t, err)
		raised := regexp.MustCompile(`(?m)^go (1\.\d+)`).FindSubmatch(mod)
		require.Len(t, raised, 2)
		if i == 0 {
			assert.Contains(t, readme, "raises the `go` line to "+string(raised[1]))
		}
	}
}
