// Command count prints the size of the house, in lines of Go, GLSL and C as wc counts them, and
// what a user of the library meets. scripts/count has the definitions.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
)

// house holds the counts.
type house struct {
	product, lab, tests, server int // lines
	options, kernels, cmd       int
	exported                    map[string]bool
}

func main() {
	h := house{exported: map[string]bool{}}
	out, err := os.ReadFile("/dev/stdin") // the files that git knows, one a line
	if err != nil {
		fail(err)
	}
	for _, p := range strings.Fields(string(out)) {
		if err := h.add(p); err != nil {
			fail(err)
		}
	}
	for _, row := range []struct {
		what string
		n    int
	}{
		{"lines: product", h.product}, {"lines: lab", h.lab}, {"lines: tests", h.tests}, {"lines: server", h.server},
		{"exported identifiers", len(h.exported)}, {"fields of EngineOptions", h.options}, {"kernels", h.kernels}, {"options of cmd", h.cmd},
	} {
		fmt.Printf("%-24s %7d\n", row.what, row.n)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "count:", err)
	os.Exit(1)
}

// add counts a file.
func (h *house) add(p string) error {
	text, err := os.ReadFile(p)
	if os.IsNotExist(err) { // deleted, and not yet committed
		return nil
	}
	if err != nil {
		return err
	}
	lines, in := bytes.Count(text, []byte("\n")), func(dir string) bool { return strings.HasPrefix(p, dir+"/") }
	switch filepath.Ext(p) {
	case ".go", ".comp", ".glsl", ".c", ".h":
		switch {
		case strings.HasSuffix(p, "_test.go"):
			h.tests += lines
		case in("internal/lab"):
			if filepath.Ext(p) == ".go" {
				h.lab += lines
			}
		case in("server"):
			h.server += lines
		case !in("cmd") && !in("examples"):
			h.product += lines
		}
	}
	if p == "shaders/builds.txt" {
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && !strings.HasPrefix(line, "#") {
				h.kernels++
			}
		}
	}
	private := in("internal") || strings.Contains(p, "/internal/") || in("examples") || in("server")
	if filepath.Ext(p) != ".go" || strings.HasSuffix(p, "_test.go") || private {
		return nil
	}
	f, err := parser.ParseFile(token.NewFileSet(), p, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if in("cmd") {
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && isFlag(call) {
				h.cmd++
			}
			return true
		})
		return nil
	}
	h.declarations(filepath.Dir(p), f)
	return nil
}

// isFlag reports whether a call declares an option: Flags().StringVar and the like.
func isFlag(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.Contains(s.Sel.Name, "Var") || len(call.Args) < 3 {
		return false
	}
	address, ok := call.Args[0].(*ast.UnaryExpr)
	return ok && address.Op == token.AND
}

// declarations counts the exported identifiers of a file: types, functions, methods of exported
// types, constants and variables, without fields, once where systems have a file each; and the
// fields of EngineOptions.
func (h *house) declarations(dir string, f *ast.File) {
	add := func(of string, id *ast.Ident) {
		if id.IsExported() && (of == "" || ast.IsExported(of)) {
			h.exported[dir+" "+of+"."+id.Name] = true
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			of := ""
			if d.Recv != nil {
				of = receiver(d.Recv.List[0].Type)
			}
			add(of, d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add("", spec.Name)
					if s, ok := spec.Type.(*ast.StructType); ok && spec.Name.Name == "EngineOptions" {
						h.options += s.Fields.NumFields()
					}
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						add("", n)
					}
				}
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(e), "*"), "[")
	return name
}
