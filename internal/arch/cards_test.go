package arch

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// products are the packages that must serve devices by what tuning and vk.Caps say of them.
var products = []string{"vk", "tensor", "cache", "indexer", "attention", "projection", "pipeline", "shaders", "internal/opkit"}

var cards = regexp.MustCompile(`\b(H[12]00|GH?100|A100|B200|L40S?|Hopper|Ampere|Blackwell|RTX|GeForce|Radeon|Instinct|MI[23]\d\d|Arc [AB]\d+)\b`)

var kinds = regexp.MustCompile(`\bvk\.Type(CPU|Discrete|Integrated|Virtual|Other)\b|\bAdapter\(\)\.Type\b`)

// Only internal/tuning knows cards: no other product package names one, in code or comments, or
// asks what kind of device there is. Package vk may ask, to put adapters in order.
func TestCards(t *testing.T) {
	for _, dir := range products {
		walk(t, func(p string) {
			source := slices.Contains([]string{".go", ".comp", ".glsl"}, filepath.Ext(p))
			if !strings.HasPrefix(p, dir+"/") || !source || strings.HasSuffix(p, "_test.go") {
				return
			}
			what := cards.FindString(read(t, p))
			if what == "" && dir != "vk" {
				what = kinds.FindString(read(t, p))
			}
			assert.Empty(t, what, "%s: a number fitted to a device belongs to internal/tuning", p)
		})
	}
}

// Package bench asks in one function whether a device is a processor.
func TestSlow(t *testing.T) {
	var asked []string
	for _, s := range sources(t) {
		if s.test || s.dir != "internal/lab/bench" && s.dir != "internal/lab/verify" && s.dir != "cmd/vkmla" {
			continue
		}
		for _, d := range s.file.Decls {
			ast.Inspect(d, func(n ast.Node) bool {
				if x, ok := n.(*ast.SelectorExpr); ok && x.Sel.Name == "TypeCPU" {
					f, _ := d.(*ast.FuncDecl)
					require.NotNil(t, f, s.path)
					asked = append(asked, s.dir+": "+f.Name.Name)
				}
				return true
			})
		}
	}
	slices.Sort(asked)
	assert.Equal(t, []string{"internal/lab/bench: slow"}, asked)
}
