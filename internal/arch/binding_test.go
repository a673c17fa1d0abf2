package arch

import (
	"go/ast"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestStructsAreFreed holds that package vk frees what the binding allocates in C for each struct
// that it is passed: structs that are made in place, and those that results are read from.
func TestStructsAreFreed(t *testing.T) {
	structs := 0
	for _, s := range sources(t) {
		if s.test || s.dir != "vk" {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			made, freed := map[string]ast.Node{}, map[string]bool{}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					name, variable := n.Lhs[0].(*ast.Ident)
					if lit, ok := n.Rhs[0].(*ast.CompositeLit); ok && variable && qualifier(lit.Type) == "vulkan" {
						made[name.Name] = n
					}
				case *ast.CallExpr:
					switch sel, _ := n.Fun.(*ast.SelectorExpr); {
					case sel == nil:
					case sel.Sel.Name == "Deref":
						made[qualifier(sel)] = n
					case sel.Sel.Name == "Free":
						freed[qualifier(sel)] = true
					}
				}
				return true
			})
			for name, at := range made {
				structs++
				assert.True(t, freed[name], "%s: %s.Free()", s.fset.Position(at.Pos()), name)
			}
		}
	}
	assert.Greater(t, structs, 10)
}

// qualifier is the name in front of a selector's dot.
func qualifier(e ast.Expr) string {
	if sel, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := sel.X.(*ast.Ident); ok {
			return x.Name
		}
	}
	return ""
}
