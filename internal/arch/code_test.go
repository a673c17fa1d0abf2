package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/vkmla/vkmla"

// may says which packages of ours a public package may import. Imports run one
// way: a package that is not listed here has to be put in its place first.
var may = map[string][]string{
	"shaders":    {"internal/spirv"},
	"vk":         {"internal/door", "internal/files", "internal/spirv"},
	"vk/share":   {"internal/door", "vk"},
	"tensor":     {"vk"},
	"cache":      {"tensor", "vk", "shaders", "internal/numfmt", "internal/opkit", "internal/tuning"},
	"indexer":    {"cache", "tensor", "vk", "shaders", "internal/numfmt", "internal/opkit", "internal/tuning"},
	"attention":  {"cache", "tensor", "vk", "shaders", "internal/numfmt", "internal/opkit", "internal/tuning"},
	"projection": {"cache", "tensor", "vk", "shaders", "internal/door", "internal/numfmt", "internal/opkit", "internal/tuning"},

	"pipeline/model": {"projection", "attention", "indexer", "cache", "tensor", "vk", "internal/files", "internal/gguf",
		"internal/numfmt", "internal/safetensors"},
	"pipeline/model/random":    {"pipeline/model", "internal/safetensors"},
	"pipeline/internal/blocks": {"cache", "internal/opkit"},
	"pipeline/internal/memory": {"tensor", "vk"},
	"pipeline/internal/layer": {
		"pipeline/internal/memory", "pipeline/model", "attention", "indexer", "projection", "cache", "tensor", "vk", "shaders",
		"internal/numfmt", "internal/opkit", "internal/tuning",
	},
	"pipeline/internal/measure": {
		"pipeline/internal/memory", "attention", "indexer", "projection", "cache", "tensor", "vk", "shaders",
		"internal/files", "internal/numfmt", "internal/opkit", "internal/timed", "internal/tuning",
	},
	"pipeline/internal/commands": {
		"pipeline/internal/layer", "pipeline/internal/memory", "pipeline/model", "attention", "indexer", "cache", "tensor", "vk",
		"internal/door", "internal/tuning",
	},
	"pipeline/internal/pages": {"pipeline/internal/blocks", "pipeline/internal/layer", "pipeline/internal/memory", "pipeline/model", "cache", "tensor", "vk"},
	"pipeline": {
		"pipeline/internal/commands", "pipeline/internal/layer", "pipeline/internal/measure", "pipeline/internal/memory",
		"pipeline/internal/pages", "pipeline/model", "attention", "indexer", "projection", "cache", "tensor", "vk",
		"shaders", "internal/door", "internal/files", "internal/numfmt", "internal/opkit", "internal/probe/engine", "internal/tuning",
	},
	"pipeline/prefix":   {"pipeline", "vk", "internal/files"},
	"pipeline/replicas": {"pipeline", "cache", "vk"},

	"server/text":       {"internal/files", "internal/gguf"},
	"server/weights":    {"pipeline/model", "internal/files", "internal/gguf", "internal/numfmt"},
	"server/chat":       {"server/text", "internal/files"},
	"server/random":     {"server/text", "server/weights", "pipeline/model", "internal/gguf", "internal/numfmt"},
	"server/cpu/native": {},
	"server/cpu":        {"server/cpu/native", "server/weights", "internal/numfmt"},
	"server/gpu":        {"server/weights", "pipeline", "pipeline/model", "tensor", "vk", "internal/numfmt", "internal/opkit"},
	"server/model":      {"server/cpu", "server/gpu", "server/weights", "pipeline", "pipeline/model", "pipeline/prefix", "vk"},
	"server/batch":      {"server/model", "pipeline/model", "cache", "vk"},
	"server/api":        {"server/batch", "server/chat", "server/text", "internal/files"},
	"server": {
		"server/api", "server/batch", "server/chat", "server/cpu", "server/gpu", "server/model", "server/random", "server/text",
		"pipeline", "pipeline/prefix", "pipeline/prefix/blob", "pipeline/replicas", "vk", "internal/files", "internal/sizes",
	},

	"examples/attention": {"pipeline", "pipeline/model", "pipeline/model/random", "vk"}, // as another project's program
}

// product reports whether a folder lies in the server, a module of its own: of ours its packages
// import what may lists, of others what they like.
func product(dir string) bool { return dir == "server" || strings.HasPrefix(dir, "server/") }

// foreignModule is a module of its own that could be another's: of ours it imports public packages,
// of others what it likes.
const foreignModule = "pipeline/prefix/blob"

// mayInternal does the same for internal packages that others are built on; the
// rest of internal, and cmd, may import anything but cmd.
var mayInternal = map[string][]string{
	"internal/numfmt":       {},
	"internal/sizes":        {},
	"internal/spirv":        {},
	"internal/files":        {},
	"internal/probe/engine": {"cache"},
	"internal/gguf":         {"internal/files", "internal/numfmt"},
	"internal/safetensors":  {"internal/files"},
	"internal/opkit":        {"tensor", "vk", "shaders", "internal/door", "internal/spirv", "internal/tuning"},
	"internal/door":         {},
	"internal/timed":        {"internal/tuning", "vk"},
	"internal/tuning":       {"internal/door", "vk"},
	"internal/lab/vectors":  {"internal/files", "internal/numfmt"},
}

// foreign says which modules of others a public package may import: a program
// that uses the library gets the binding and nothing else.
var foreign = map[string][]string{"vk": {"github.com/goki/vulkan"}}

// source is a parsed Go file.
type source struct {
	path string // from the root, with slashes
	dir  string
	test bool
	file *ast.File
	fset *token.FileSet
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

// walk calls visit for every file of the repository, with its path from the
// root, leaving out what git and other tools keep in folders with a dot.
func walk(t *testing.T, visit func(path string)) {
	t.Helper()
	top := root(t)
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin") {
			return filepath.SkipDir
		}
		rel, err := filepath.Rel(top, p)
		if err == nil && !d.IsDir() {
			visit(filepath.ToSlash(rel))
		}
		return err
	})
	require.NoError(t, err)
}

func sources(t *testing.T) []source {
	t.Helper()
	var list []source
	walk(t, func(p string) {
		if !strings.HasSuffix(p, ".go") {
			return
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root(t), p), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			return
		}
		list = append(list, source{p, filepath.ToSlash(filepath.Dir(p)), strings.HasSuffix(p, "_test.go"), f, fset})
	})
	return list
}

// imports lists what a file imports: our packages from the root, and others.
func imports(f *ast.File) (ours, others []string) {
	for _, s := range f.Imports {
		path, err := strconv.Unquote(s.Path.Value)
		if err != nil {
			continue
		}
		if rest, ok := strings.CutPrefix(path, module+"/"); ok {
			ours = append(ours, rest)
		} else if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") {
			others = append(others, path)
		}
	}
	return ours, others
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		ours, others := imports(s.file)
		for _, o := range ours {
			assert.False(t, strings.HasPrefix(o, "cmd/"), "%s imports %s: nothing imports a command", s.path, o)
		}
		if s.test {
			if strings.HasPrefix(s.path[strings.LastIndex(s.path, "/")+1:], "example") {
				for _, o := range ours {
					assert.False(t, strings.Contains("/"+o+"/", "/internal/"), "%s imports %s: an example compiles anywhere", s.path, o)
				}
			}
			continue
		}
		if s.dir == foreignModule {
			for _, o := range ours {
				assert.False(t, strings.Contains("/"+o+"/", "/internal/"), "%s imports %s, which nobody else could", s.path, o)
			}
			continue
		}
		public := !strings.HasPrefix(s.dir, "internal/") && !strings.HasPrefix(s.dir, "cmd/")
		allowed, listed := may[s.dir]
		if !public {
			allowed, listed = mayInternal[s.dir]
		}
		assert.False(t, public && !listed, "%s: package %s has no place in the order of imports", s.path, s.dir)
		for _, o := range ours {
			assert.False(t, listed && !slices.Contains(allowed, o),
				"%s imports %s; %s may import %v", s.path, o, s.dir, allowed)
		}
		for _, o := range others {
			assert.False(t, public && !product(s.dir) && !slices.Contains(foreign[s.dir], o),
				"%s imports %s, which everybody who imports the library would need", s.path, o)
		}
	}
}

// TestNoEnvironment holds the rule that the library takes options, not
// environment variables. Commands, and the test kit, may read them.
func TestNoEnvironment(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || strings.HasPrefix(s.dir, "cmd/") || s.dir == "internal/lab/testkit" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, _ := sel.X.(*ast.Ident)
			if pkg != nil && (pkg.Name == "os" || pkg.Name == "syscall") && slices.Contains([]string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"}, sel.Sel.Name) {
				t.Errorf("%s reads the environment", s.fset.Position(sel.Pos()))
			}
			return true
		})
	}
}

// TestPackagesHaveComments demands one package comment per package.
func TestPackagesHaveComments(t *testing.T) {
	documented := map[string]int{}
	for _, s := range sources(t) {
		if !s.test {
			documented[s.dir] += 0
			if s.file.Doc != nil {
				documented[s.dir]++
			}
		}
	}
	for dir, n := range documented {
		assert.Equal(t, 1, n, "package %s has %d package comments", dir, n)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), path))
	require.NoError(t, err)
	return string(data)
}

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

// waiting are the shaders whose workgroups wait for others of the same launch. Each counts its
// looks and gives up, and is launched so only where tuning.MayWait says that others go on.
// Workgroups of idx_topk_lanes.comp and lib/linear_norm.glsl count arrivals and never wait: the
// last one to arrive does the rest.
var waiting = []string{"proj_linear_chain.comp"}

// looking matches what a shader must use to see, in a loop, writes of another workgroup.
var looking = regexp.MustCompile(`coherent\s+volatile|volatile\s+coherent|atomicLoad|atomicCompSwap|atomicExchange`)

// TestWaiting finds shaders that could wait for other workgroups.
func TestWaiting(t *testing.T) {
	var found []string
	walk(t, func(p string) {
		if !strings.HasPrefix(p, "shaders/") || !slices.Contains([]string{".comp", ".glsl"}, filepath.Ext(p)) {
			return
		}
		if looking.MatchString(read(t, p)) {
			found = append(found, strings.TrimPrefix(p, "shaders/"))
		}
	})
	assert.Equal(t, waiting, found, "a kernel whose workgroups wait for others hangs many GPUs")
}

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
