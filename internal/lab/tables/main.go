// Command tables writes the tables of documents that follow from registries: operations, from their
// descriptions in internal/lab/verify, and kernels, from shaders/builds.txt.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	"github.com/vkmla/vkmla/internal/lab/verify"
)

func main() {
	if err := each(".", func(path, _, want string) error { return os.WriteFile(path, []byte(want), 0o644) }); err != nil {
		fmt.Fprintln(os.Stderr, "tables:", err)
		os.Exit(1)
	}
}

// each calls do for the documents that have tables, with their text as it is and as it should be.
func each(root string, do func(path, got, want string) error) error {
	builds, err := os.ReadFile(filepath.Join(root, "shaders/builds.txt"))
	if err != nil {
		return err
	}
	of := map[string]func(heading string) string{
		"CONTRIBUTING.md":   operations,
		"shaders/README.md": func(heading string) string { return kernels(heading, string(builds)) },
	}
	for name, table := range of {
		path := filepath.Join(root, name)
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := do(path, string(got), replaced(string(got), table)); err != nil {
			return err
		}
	}
	return nil
}

// replaced puts tables in place of the rows below the headings for which table returns some.
func replaced(text string, table func(heading string) string) string {
	var out strings.Builder
	rows, inside := "", false
	for line := range strings.Lines(text) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			rows, inside = table(strings.TrimSpace(heading)), false
		}
		switch row := strings.HasPrefix(line, "|"); {
		case rows != "" && row && strings.HasPrefix(line, "|---"):
			out.WriteString(line + rows)
			inside = true
		case inside && row:
		default:
			out.WriteString(line)
		}
	}
	return out.String()
}

// operations returns the rows of operations, those that are alike in one.
func operations(heading string) string {
	if heading != "Names of operations" {
		return ""
	}
	var names [][]string
	var of []verify.Of
	for _, op := range verify.All() {
		if at := slices.Index(of, op.Of); at >= 0 {
			names[at] = append(names[at], op.Name)
			continue
		}
		names, of = append(names, []string{op.Name}), append(of, op.Of)
	}
	var rows strings.Builder
	for i, x := range of {
		sections := strings.FieldsFunc(strings.ReplaceAll(x.Sections, "|", `\|`), func(r rune) bool { return r == ',' || r == ' ' })
		rows.WriteString("|")
		for _, cell := range [][]string{names[i], strings.Fields(x.Types), strings.Fields(x.Kernels), sections} {
			rows.WriteString(" " + ticked(cell) + "|")
		}
		rows.WriteString("\n")
	}
	return rows.String()
}

func ticked(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "`" + strings.Join(names, "`, `") + "` "
}

// sections of kernels, by the prefixes of their names.
var sections = map[string]string{"Attention": "attn_", "Cache": "kv_", "Indexer": "idx_", "Projection": "proj_", "Tools": "num_"}

// kernels returns the rows of a section: of lines "#| computes | chosen", each before the first
// build of a kernel, and "#+ computes | chosen" before another build with a row of its own.
func kernels(heading, builds string) string {
	prefix, ok := sections[heading]
	if !ok {
		return ""
	}
	var rows strings.Builder
	about := ""
	for line := range strings.Lines(builds) {
		if strings.HasPrefix(line, "#|") || strings.HasPrefix(line, "#+") {
			about = line
			continue
		}
		f := strings.Fields(line)
		if about == "" || len(f) < 2 {
			continue
		}
		name := "`" + f[1] + "`"
		if about[1] == '+' {
			name += " as `" + f[0] + "`"
		}
		if strings.HasPrefix(f[0], prefix) {
			fmt.Fprintf(&rows, "| %s | %s |\n", name, strings.TrimSpace(about[2:]))
		}
		about = ""
	}
	return rows.String()
}
