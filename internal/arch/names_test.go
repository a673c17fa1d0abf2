package arch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// TestOperationNames holds what descriptions of operations name for the table of CONTRIBUTING.md:
// types, shaders and sections exist, and every shader of an operation is in one.
func TestOperationNames(t *testing.T) {
	exists, named := existing(t), map[string]bool{}
	for _, op := range verify.All() {
		names := [][]string{strings.Fields(op.Of.Types), strings.Fields(op.Of.Kernels), strings.Split(op.Of.Sections, ", ")}
		for i, list := range names {
			for _, name := range list {
				assert.True(t, exists[i](name), "%s: %q does not exist", op.Name, name)
				named[name] = true
			}
		}
	}
	walk(t, func(p string) {
		name, shader := strings.CutSuffix(filepath.Base(p), ".comp")
		if shader && filepath.ToSlash(filepath.Dir(p)) == "shaders" && owner[name[:strings.Index(name, "_")+1]] != "" {
			assert.True(t, named[name], "%s is of no operation", p)
		}
	})
}

// existing tells whether there is a type, a shader, a section of a name.
func existing(t *testing.T) []func(name string) bool {
	code := map[string]string{} // all Go of a folder
	for _, dir := range []string{"cache", "indexer", "attention", "projection", "pipeline/internal/layer"} {
		files, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, dir)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			code[dir] += string(text)
		}
	}
	declared := func(name string) bool {
		pkg, typ, _ := strings.Cut(name, ".")
		return strings.Contains(code[pkg], "\ntype "+typ+" struct")
	}
	shader := func(name string) bool { return isSource(t, name) }
	section := func(name string) bool { return strings.Contains(code["pipeline/internal/layer"], name) }
	return []func(string) bool{declared, shader, section}
}
