package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// TestOperationNames holds the table "Names of operations" of CONTRIBUTING.md: every name
// in it exists, and every operation and every shader of one is in it.
func TestOperationNames(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## Names of operations\n")
	table, _, _ = strings.Cut(table, "\n## ")
	_, table, _ = strings.Cut(table, "|---|\n")
	exists := nameColumns(t)
	named := regexp.MustCompile("`([^`]+)`")
	columns := make([]map[string]bool, len(exists))
	for i := range columns {
		columns[i] = map[string]bool{}
	}
	for line := range strings.Lines(strings.ReplaceAll(table, `\|`, "\x00")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if !strings.HasPrefix(line, "|") {
			continue
		}
		require.Len(t, cells, len(exists)+2, "the columns of %s", line)
		for i, exist := range exists {
			for _, m := range named.FindAllStringSubmatch(cells[i+1], -1) {
				name := strings.ReplaceAll(m[1], "\x00", "|")
				columns[i][name] = true
				assert.True(t, exist(name), "CONTRIBUTING.md, names of operations: column %d: %s does not exist", i+1, name)
			}
		}
	}
	for _, op := range verify.All() {
		assert.True(t, columns[0][op.Name], "operation %s is not in CONTRIBUTING.md's names of operations", op.Name)
	}
	walk(t, func(p string) {
		name, shader := strings.CutSuffix(filepath.Base(p), ".comp")
		if shader && filepath.ToSlash(filepath.Dir(p)) == "shaders" && owner[name[:strings.Index(name, "_")+1]] != "" {
			assert.True(t, columns[2][name], "%s is not in CONTRIBUTING.md's names of operations", p)
		}
	})
}

// nameColumns tells, for each column of the table, whether there is something of a name: an
// operation, a type, a shader, a section.
func nameColumns(t *testing.T) []func(name string) bool {
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
	operation := func(name string) bool { _, known := verify.Lookup(name); return known }
	shader := func(name string) bool { return isSource(t, name) }
	section := func(name string) bool {
		for part := range strings.SplitSeq(name, ", ") {
			if !strings.Contains(code["pipeline/internal/layer"], part) {
				return false
			}
		}
		return true
	}
	return []func(string) bool{operation, declared, shader, section}
}
