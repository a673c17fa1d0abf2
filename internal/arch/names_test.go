package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestOperationNames holds the table "Names of operations" of CONTRIBUTING.md: every name
// in it exists, and every operation of verify and every shader of an operation is in it.
func TestOperationNames(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "\n## Names of operations\n")
	table, _, _ = strings.Cut(table, "\n## ")
	exists := nameColumns(t)
	named := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for line := range strings.Lines(strings.ReplaceAll(table, `\|`, "\x00")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != len(exists)+2 || !strings.Contains(line, "`") {
			continue
		}
		rows++
		for i, exist := range exists {
			for _, m := range named.FindAllStringSubmatch(cells[i+1], -1) {
				if name := strings.ReplaceAll(m[1], "\x00", "|"); !exist(name) {
					t.Errorf("CONTRIBUTING.md, names of operations: column %d: %s does not exist", i+1, name)
				}
			}
		}
	}
	if rows < 20 {
		t.Errorf("the table has %d rows", rows)
	}
	walk(t, func(p string) {
		name := strings.TrimSuffix(filepath.Base(p), filepath.Ext(p))
		var op bool
		switch filepath.ToSlash(filepath.Dir(p)) {
		case "shaders":
			op = filepath.Ext(p) == ".comp" && owner[name[:strings.Index(name, "_")+1]] != ""
		case "internal/lab/verify":
			name, op = strings.CutPrefix(name, "op_")
			op = op && !strings.HasSuffix(name, "_test")
		}
		if op && !strings.Contains(table, "`"+name+"`") && !strings.Contains(table, "`"+name+"_fp8`") {
			t.Errorf("%s: %s is not in CONTRIBUTING.md's names of operations", p, name)
		}
	})
}

// nameColumns tells, for each column of the table, whether there is something of a name: an
// operation of verify, a type, a shader, an operation of bench, a section.
func nameColumns(t *testing.T) []func(name string) bool {
	code := map[string]string{} // all Go of a folder
	for _, dir := range []string{"cache", "indexer", "attention", "projection", "pipeline/internal/layer", "internal/lab/bench"} {
		files, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			code[dir] += string(text)
		}
	}
	file := func(path string) bool {
		_, err := os.Stat(filepath.Join(root(t), path))
		return err == nil
	}
	quoted := func(dir string) func(string) bool {
		return func(name string) bool { return strings.Contains(code[dir], `"`+name+`"`) }
	}
	verify := func(name string) bool {
		stem := strings.TrimSuffix(strings.TrimSuffix(name, "_fp8"), "_mxfp4") // some files serve several formats
		return file("internal/lab/verify/op_"+name+".go") || file("internal/lab/verify/op_"+stem+".go")
	}
	declared := func(name string) bool {
		pkg, typ, _ := strings.Cut(name, ".")
		return strings.Contains(code[pkg], "\ntype "+typ+" struct")
	}
	shader := func(name string) bool { return file("shaders/" + name + ".comp") }
	return []func(string) bool{verify, declared, shader, quoted("internal/lab/bench"), quoted("pipeline/internal/layer")}
}
