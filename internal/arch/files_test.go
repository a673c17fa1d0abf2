package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// maxLines bounds a file; a longer one has to be taken apart.
const maxLines = 600

// owner says which package a shader's prefix belongs to.
var owner = map[string]string{"kv_": "cache", "idx_": "indexer", "attn_": "attention", "proj_": "projection"}

// tools are shaders that are no operations of the library, and who uses them.
var tools = map[string]string{
	"num_formats":     "the test of the number formats in package cache",
	"num_layout_cm":   "the choice of a kernel in packages indexer, attention and projection",
	"num_elements_cm": "the choice of a build in package opkit; the test of the matrix elements in package attention",
	"kv_touch":        "the decode step of package pipeline; it computes nothing that a reference could",
}

// parts are shaders that only exist inside an operation of another stem, whose
// test covers them.
var parts = map[string]string{
	"attn_merge":          "split decode and prefill",
	"attn_pack_indices":   "two-pass decode",
	"attn_placed_indices": "attention over gathered rows",
}

// further are shaders by which an operation of another stem computes the same, or a
// step of it, and which stem that is.
var further = map[string]string{
	"attn_decode_lanes":        "attn_decode",
	"attn_prefill_lanes":       "attn_prefill",
	"idx_logits_lanes":         "idx_logits",
	"idx_logits_prompt":        "idx_logits",
	"idx_topk_lanes":           "idx_topk",
	"idx_topk_tiles":           "idx_topk",
	"proj_linear_tokens1to8":   "proj_linear",
	"proj_linear_tokens8to16":  "proj_linear",
	"proj_linear_sum":          "proj_linear",
	"proj_linear_chain":        "proj_linear",
	"proj_linear_tokens8to32":  "proj_linear",
	"proj_linear_tokens32to64": "proj_linear",
	"proj_linear_whole":        "proj_linear",
	"proj_linear_codes":        "proj_linear",
}

// TestStems holds the rule that an operation's name leads to all its files:
// shaders/attn_decode.comp, attention/decode.go, decode_ref.go, decode_test.go.
// A shader with a variant's suffix shares the files of the one without.
func TestStems(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join(root(t), "shaders", "*.comp"))
	require.NoError(t, err, "no shaders")
	require.NotEmpty(t, sources, "no shaders")
	for _, path := range sources {
		name := strings.TrimSuffix(filepath.Base(path), ".comp")
		if tools[name] != "" {
			continue
		}
		base := strings.TrimSuffix(name, "_cm")
		if op := further[base]; op != "" {
			base = op
		}
		prefix := base[:strings.Index(base, "_")+1]
		dir, ok := owner[prefix]
		if !ok {
			t.Errorf("shaders/%s.comp: prefix %q belongs to no package", name, prefix)
			continue
		}
		stem := strings.TrimPrefix(base, prefix)
		files := []string{stem + ".go", stem + "_ref.go", stem + "_test.go"}
		if parts[base] != "" {
			files = files[:2]
		}
		for _, f := range files {
			_, err := os.Stat(filepath.Join(root(t), dir, f))
			assert.NoError(t, err, "shaders/%s.comp has no %s/%s", name, dir, f)
		}
	}
}

// suffixes is the closed list of words behind a source's stem.
var suffixes = []string{"da", "cm", "cmb", "dot", "lanes", "norm", "raw", "picks", "save", "slots", "codes", "float8"}

// renamed are kernels that do something else than what their source is called after.
var renamed = []string{"num_layout_cm", "num_layout_cmb", "num_rows_cm", "num_rows_cmb",
	"num_codes_cm", "num_float8_cm", "num_subnormals_cm"}

// checkSuffix checks what stands in a name behind a stem.
func checkSuffix(t *testing.T, name, stem string) {
	t.Helper()
	rest, ok := strings.CutPrefix(name, strings.TrimSuffix(stem, "_cm"))
	assert.True(t, ok, "%s of %s.comp is called after something else", name, stem)
	for _, w := range strings.Split(rest, "_")[1:] {
		assert.Contains(t, suffixes, w, "%s of %s.comp has a suffix that is not one", name, stem)
	}
}

// isSource tells whether there is a source of that stem.
func isSource(t *testing.T, stem string) bool {
	_, err := os.Stat(filepath.Join(root(t), "shaders", stem+".comp"))
	return err == nil
}

// TestBuilds holds builds.txt, the sources and the committed SPIR-V against each
// other, and the suffixes to the closed list.
func TestBuilds(t *testing.T) {
	for _, home := range append(slices.Clone(homes), "internal/lab/bench/kernels") {
		t.Run(home, func(t *testing.T) { checkBuilds(t, home) })
	}
}

func checkBuilds(t *testing.T, home string) {
	built, sources := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(read(t, home+"/builds.txt")) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) < 2 {
			t.Errorf("builds.txt: %q", line)
			continue
		}
		output, source := f[0], f[1]
		assert.False(t, built[output], "builds.txt has %s twice", output)
		built[output], sources[source] = true, true
		if !slices.Contains(renamed, output) {
			checkSuffix(t, output, source)
		}
		for _, p := range []string{home + "/" + source + ".comp", home + "/spv/" + output + ".spv"} {
			_, err := os.Stat(filepath.Join(root(t), p))
			assert.NoError(t, err, "builds.txt: %s is not there", p)
		}
	}
	walk(t, func(p string) {
		name := strings.TrimSuffix(filepath.Base(p), filepath.Ext(p))
		switch dir := filepath.ToSlash(filepath.Dir(p)); {
		case dir == home+"/spv" && filepath.Ext(p) == ".spv" && !built[name]:
			t.Errorf("%s is not in builds.txt", p)
		case dir == home && filepath.Ext(p) == ".comp" && !sources[name]:
			t.Errorf("%s is not in builds.txt", p)
		}
	})
}

// TestTieRule holds that each kernel that decides between equal scores says how.
func TestTieRule(t *testing.T) {
	for _, name := range []string{"idx_candidates", "idx_topk", "idx_topk_lanes", "idx_topk_tiles"} {
		assert.Contains(t, read(t, "shaders/"+name+".comp"), "TIE RULE: ", name)
	}
}

// leftOver finds notes that belong into an issue. The words are put together
// here so that this file does not contain them.
var leftOver = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)

func TestFiles(t *testing.T) {
	walk(t, func(p string) {
		switch filepath.Ext(p) {
		case ".go", ".comp", ".glsl", ".c", ".h":
		default:
			return
		}
		text := read(t, p)
		assert.LessOrEqual(t, strings.Count(text, "\n"), maxLines, "%s has %d lines, more", p, strings.Count(text, "\n"))
		assert.Empty(t, leftOver.FindString(text), "%s contains", p)
	})
}

// TestShaderHeads holds that the comment a shader begins with says how much shared memory it takes.
func TestShaderHeads(t *testing.T) {
	walk(t, func(p string) {
		if filepath.Ext(p) != ".comp" {
			return
		}
		text := strings.TrimPrefix(read(t, p), "#version 460\n")
		var head strings.Builder
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "//") {
				break
			}
			head.WriteString(line)
		}
		assert.Contains(t, strings.ToLower(head.String()), "shared memory",
			"%s: the comment it begins with does not speak of shared memory", p)
	})
}

// TestWorkgroupCounts holds what vk.Recorder.Split relies on: a shader that reads how
// many workgroups there are reads it along x.
func TestWorkgroupCounts(t *testing.T) {
	walk(t, func(p string) {
		if e := filepath.Ext(p); e != ".comp" && e != ".glsl" {
			return
		}
		text := read(t, p)
		assert.Equal(t, strings.Count(text, "gl_NumWorkGroups.x"), strings.Count(text, "gl_NumWorkGroups"),
			"%s reads gl_NumWorkGroups %d times, of them along x", p, strings.Count(text, "gl_NumWorkGroups"))
	})
}

// TestWorkflowSteps holds that the code host's workflow takes every step of CI.
func TestWorkflowSteps(t *testing.T) {
	text := func(path string) string {
		data, err := os.ReadFile(filepath.Join("..", "..", path))
		require.NoError(t, err)
		return string(data)
	}
	list := regexp.MustCompile(`(?m)^steps="(.*)"$`).FindStringSubmatch(text(".ci/run"))
	require.Len(t, list, 2, ".ci/run has no line of steps")
	var taken []string
	for _, run := range regexp.MustCompile(`(?m)^ *- run: \.ci/run (.*)$`).FindAllStringSubmatch(text(".github/workflows/test.yml"), -1) {
		taken = append(taken, strings.Fields(run[1])...)
	}
	assert.ElementsMatch(t, strings.Fields(list[1]), taken)
}
