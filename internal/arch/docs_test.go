package arch

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// documents lists the Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	var list []string
	walk(t, func(p string) {
		if path.Ext(p) == ".md" {
			list = append(list, p)
		}
	})
	require.NotEmpty(t, list)
	return list
}

var (
	fence = regexp.MustCompile("(?ms)^```.*?^```$")
	link  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	ticks = regexp.MustCompile("`([^`\n]+)`")
)

// TestLinks holds that a link of a document leads to a file, and to a heading where it names one.
func TestLinks(t *testing.T) {
	for _, p := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(read(t, p), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, heading, _ := strings.Cut(m[1], "#")
			target := p
			if file != "" {
				target = path.Join(path.Dir(p), file)
			}
			if assert.True(t, exists(t, target), "%s links to %s", p, m[1]) && heading != "" {
				assert.Contains(t, headings(read(t, target)), heading, "%s links to %s", p, m[1])
			}
		}
	}
}

// headings are a document's, as links name them.
func headings(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' {
			drop := func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
					return unicode.ToLower(r)
				}
				return -1
			}
			list = append(list, strings.Map(drop, strings.TrimSpace(title)))
		}
	}
	return list
}

// exists tells whether a path from the root, or a pattern of paths, is there.
func exists(t *testing.T, p string) bool {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root(t), p))
	require.NoError(t, err)
	return len(found) > 0
}

var (
	place  = regexp.MustCompile(`^(?:\./)?((?:vk|tensor|shaders|cache|indexer|attention|projection|pipeline|internal|cmd|server|examples|scripts|testdata|docs)/[\w./*-]+)$`)
	file   = regexp.MustCompile(`^[\w-]+\.(go|comp|glsl|md|txt)$`)
	kernel = regexp.MustCompile(`^(attn|idx|kv|proj|num|bench)_[a-z0-9_]+$`)
	mixed  = regexp.MustCompile(`^([A-Za-z]\w*\.)*[A-Za-z]\w*$`)
)

// historic documents name what is gone.
var historic = []string{"docs/tried.md", "CHANGELOG.md"}

// TestNamedFiles holds that what a document names in backticks is there: files, kernels and
// identifiers of the sources.
func TestNamedFiles(t *testing.T) {
	base, words := map[string]bool{}, map[string]bool{}
	word := regexp.MustCompile(`\w+`)
	walk(t, func(p string) {
		base[path.Base(p)] = true
		switch path.Ext(p) {
		case ".go", ".comp", ".glsl", ".h", ".c", ".txt", "":
			for _, w := range word.FindAllString(read(t, p), -1) {
				words[w] = true
			}
		}
	})
	checked := 0
	for _, p := range documents(t) {
		if slices.Contains(historic, p) {
			continue
		}
		for _, m := range ticks.FindAllStringSubmatch(fence.ReplaceAllString(read(t, p), ""), -1) {
			for w := range strings.FieldsSeq(m[1]) {
				checked++
				switch w = strings.TrimSuffix(strings.TrimSuffix(strings.Trim(w, ",;'\""), "/..."), "/"); {
				case place.MatchString(w):
					assert.True(t, exists(t, place.FindStringSubmatch(w)[1]), "%s names %s", p, w)
				case file.MatchString(w):
					assert.True(t, base[w], "%s names %s", p, w)
				case kernel.MatchString(w):
					assert.True(t, words[w], "%s names the kernel %s", p, w)
				case mixed.MatchString(w) && strings.ToLower(w) != w && strings.ToUpper(w) != w && w == m[1]:
					assert.True(t, words[w[strings.LastIndex(w, ".")+1:]], "%s names %s", p, w)
				default:
					checked--
				}
			}
		}
	}
	assert.Greater(t, checked, 200, "names found")
}

// TestCommentsNameDocuments holds that a document that a source names is there.
func TestCommentsNameDocuments(t *testing.T) {
	named := regexp.MustCompile(`\b(?:docs|shaders|testdata)/[\w/-]*\.md\b`)
	walk(t, func(p string) {
		switch path.Ext(p) {
		case ".go", ".comp", ".glsl", ".c", ".h", "":
			for _, doc := range named.FindAllString(read(t, p), -1) {
				assert.True(t, exists(t, doc), "%s names %s", p, doc)
			}
		}
	})
}

// homes are the folders that have shaders.
var homes = []string{"shaders", "server/gpu/shaders"}

// TestKernelIndex holds that the README.md of a folder has a line for every shader in it, says when
// it is chosen or what holds it, and names no other.
func TestKernelIndex(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]+) \\| ([^|]+) \\|$")
	for _, home := range homes {
		var listed, sources []string
		for _, m := range row.FindAllStringSubmatch(read(t, home+"/README.md"), -1) {
			listed = append(listed, m[1])
		}
		walk(t, func(p string) {
			if path.Dir(p) == home && path.Ext(p) == ".comp" {
				sources = append(sources, strings.TrimSuffix(path.Base(p), ".comp"))
			}
		})
		require.NotEmpty(t, sources)
		assert.ElementsMatch(t, sources, listed, home)
	}
}

// TestReadmeProgram holds that the README's program is the one that package pipeline compiles.
func TestReadmeProgram(t *testing.T) {
	_, code, found := strings.Cut(read(t, "README.md"), "```go\n")
	require.True(t, found, "README.md has no Go")
	code, _, _ = strings.Cut(code, "```")
	_, body, found := strings.Cut(read(t, "pipeline/example_readme_test.go"), "y []float32) {\n")
	require.True(t, found, "pipeline/example_readme_test.go has no function readme")
	body, _, _ = strings.Cut(body, "\n}\n")
	body = regexp.MustCompile(`(?m)^\t`).ReplaceAllString(body+"\n", "")
	assert.Equal(t, body, code)
}

// Widths of lines in columns, a tab being four.
const (
	widestComment = 100
	widestCode    = 140
)

// wide says how many lines of an area may be wider. These numbers only ever shrink, to what
// TestLineWidths logs; an area that is not listed has none.
var wide = map[string]struct{ comments, code int }{
	"internal/lab":       {0, 31},
	"tests of attention": {0, 9},
	"tests":              {0, 250},
}

// area names the part of the house that a line counts for.
func area(p string) string {
	top, rest, _ := strings.Cut(p, "/")
	switch test := strings.HasSuffix(p, "_test.go"); {
	case test && top == "attention":
		return "tests of attention"
	case test:
		return "tests"
	case top == "internal" && strings.HasPrefix(rest, "lab/"):
		return "internal/lab"
	}
	return top
}

// TestLineWidths holds the widths of lines.
func TestLineWidths(t *testing.T) {
	type count struct{ comments, code []string }
	found := map[string]*count{}
	walk(t, func(p string) {
		if !slices.Contains([]string{".go", ".comp", ".glsl"}, path.Ext(p)) {
			return
		}
		c := found[area(p)]
		if c == nil {
			c = &count{}
			found[area(p)] = c
		}
		for line := range strings.Lines(read(t, p)) {
			line = strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "    ")
			width, comment := utf8.RuneCountInString(line), strings.HasPrefix(strings.TrimSpace(line), "//")
			switch {
			case comment && width > widestComment:
				c.comments = append(c.comments, p)
			case !comment && width > widestCode:
				c.code = append(c.code, p)
			}
		}
	})
	for name, c := range found {
		most := wide[name]
		t.Logf("%q: {%d, %d},", name, len(c.comments), len(c.code))
		assert.LessOrEqual(t, len(c.comments), most.comments, "%s: comments wider than %d columns%s", name, widestComment, worst(c.comments))
		assert.LessOrEqual(t, len(c.code), most.code, "%s: lines wider than %d columns%s", name, widestCode, worst(c.code))
	}
}

// worst says which files a list names most often.
func worst(files []string) string {
	times := map[string]int{}
	for _, f := range files {
		times[f]++
	}
	list := slices.SortedFunc(maps.Keys(times), func(a, b string) int {
		return cmp.Or(times[b]-times[a], strings.Compare(a, b))
	})
	return fmt.Sprintf(", most of them in %v", list[:min(5, len(list))])
}

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
