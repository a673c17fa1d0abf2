package arch

import (
	"go/ast"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestRatiosAreData holds that the library asks no layer which kind it is: it compares a ratio
// with no number but 0 and 1. What a kind of layer has stands in its row (model.LayerSpec).
func TestRatiosAreData(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || strings.HasPrefix(s.dir, "internal/lab") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if comparison(n.Op) {
					assert.False(t, isRatio(n.X) && isKind(n.Y) || isRatio(n.Y) && isKind(n.X), "%s", s.fset.Position(n.Pos()))
				}
			case *ast.SwitchStmt:
				if n.Tag == nil || !isRatio(n.Tag) {
					return true
				}
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						assert.False(t, isKind(e), "%s", s.fset.Position(e.Pos()))
					}
				}
			}
			return true
		})
	}
}

func comparison(op token.Token) bool {
	switch op {
	case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		return true
	}
	return false
}

// isRatio reports whether an expression is called ratio.
func isRatio(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return strings.EqualFold(e.Name, "ratio")
	case *ast.SelectorExpr:
		return isRatio(e.Sel)
	}
	return false
}

// isKind reports whether an expression is a number above 1.
func isKind(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.INT {
		return false
	}
	n, err := strconv.Atoi(lit.Value)
	return err == nil && n > 1
}
