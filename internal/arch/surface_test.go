package arch

import (
	"go/ast"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// mostExported bounds the exported identifiers of a package: types, functions, methods of
// exported types, constants and variables. Fields do not count.
var mostExported = map[string]int{"pipeline": 80}

func TestSurface(t *testing.T) {
	names := map[string][]string{}
	for _, s := range sources(t) {
		if _, bounded := mostExported[s.dir]; bounded && !s.test {
			names[s.dir] = append(names[s.dir], exported(s.file)...)
		}
	}
	for dir, most := range mostExported {
		slices.Sort(names[dir])
		assert.NotEmpty(t, names[dir], dir)
		assert.LessOrEqual(t, len(names[dir]), most, "package %s exports %s", dir, strings.Join(names[dir], ", "))
	}
}

// exported lists the exported identifiers that a file declares.
func exported(f *ast.File) (list []string) {
	add := func(prefix string, id *ast.Ident) {
		if id.IsExported() {
			list = append(list, prefix+id.Name)
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add("", d.Name)
			} else if of := receiver(d.Recv.List[0].Type); of.IsExported() {
				add(of.Name+".", d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add("", spec.Name)
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						add("", n)
					}
				}
			}
		}
	}
	return list
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		default:
			id, _ := e.(*ast.Ident)
			return id
		}
	}
}
