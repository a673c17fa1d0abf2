package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/picture/pagetest"
	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/lab/testkit"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/tuning"
)

const (
	golden = "../../testdata/golden"
	quick  = "get_compressed_slot_mapping" // an operation whose recorded cases take no time
)

// command runs a command line and returns its exit code and output.
func command(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(context.Background(), args, &out, &err)
	return code, out.String(), err.String()
}

func TestExitCodes(t *testing.T) {
	truncated := copyGolden(t, func(name string, data []byte) []byte {
		if name == quick+".npz" {
			return data[:len(data)/2]
		}
		return data
	})
	checkpoint := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(checkpoint, "config.json"), []byte("{}"), 0o600))
	for _, c := range []struct {
		name   string
		args   string
		code   int
		stderr string // a part of the only line there
	}{
		{"recorded cases", "verify --vectors " + golden + " --op " + quick, 0, ""},
		{"two folders", "verify --vectors " + golden + " --vectors " + golden + " --op " + quick + " --case c4", 0, ""},
		{"random cases", "verify --op " + quick + " --variant base --seed 3", 0, ""},
		{"unknown operation", "verify --op nothing", 1, ""},
		{"operation the folder lacks", "verify --vectors " + golden + " --op decode_window_indices", 1, ""},
		{"unknown case", "verify --op " + quick + " --case nothing", 1, ""},
		{"unknown variant", "verify --op " + quick + " --variant nothing", 1, ""},
		{"wrong results", "verify --vectors " + wrongGolden(t) + " --op " + quick, 1, ""},
		{"no folder", "verify --vectors /does/not/exist", 2, "vectors: open"},
		{"no manifest", "verify --vectors " + t.TempDir(), 2, "manifest.json"},
		{"a checkpoint", "verify --vectors " + checkpoint, 2, "vkmla run --expect"},
		{"truncated folder", "verify --vectors " + truncated, 2, "malformed vectors"},
		{"no such device", "verify --device nothing", 2, "no Vulkan device"},
		{"unknown format", "verify -o xml", 2, "--output"},
		{"unknown flag", "verify --nothing", 2, "unknown flag"},
		{"an argument too many", "verify x", 2, "unknown command"},
		{"unknown command", "nothing", 2, "unknown command"},
		{"indexer suite", "bench --suite indexer --op fused_indexer_q_rope_quant_fp8 --batch 1 --prefill 128 --heads 2 --reps 1", 0, ""},
		{"layer suite", "bench --suite layer --model small --kind window --batch 2 --context 200 --weights nvfp4 --reps 1", 0, ""},
		{"step suite", "bench --suite step --model small --batch 2 --context 200 --weights bf16 --reps 1", 0, ""},
		{"attention suite", "bench --suite attention --op flashmla_sparse_decode --case topk=0 --batch 2 --heads 8 --reps 1", 0, ""},
		{"memory suite", "bench --suite memory --op quantize --batch 3 --prefill 128 --reps 1", 0, ""},
		{"linear suite", "bench --suite linear --case matrix=wq_b --batch 3 --weights bf16 --reps 1", 0, ""},
		{"comparison", "bench --compare peers.json --op fused_q_kv --reps 1", 0, ""},
		{"comparison by another suite", "bench --compare peers.json --suite step", 2, "--compare"},
		{"comparison with nothing", "bench --compare nothing.json", 2, "nothing.json"},
		{"a flag of other suites", "bench --suite step --op ~[x]", 2, `op: got "~[x]", want nothing`},
		{"suite of the comparison", "bench --suite compare", 2, "attention, indexer"},
		{"unknown model", "bench --suite layer --model soup", 2, "flash, pro"},
		{"unknown key format", "bench --suite layer --keys soup", 2, "mxfp4"},
		{"a flag of the layer suite", "bench --suite indexer --model pro", 2, "--suite linear, layer, step, prefill"},
		{"unknown suite", "bench --suite soup", 2, "attention, indexer"},
		{"unknown operation of a suite", "bench --suite indexer --op soup", 2, "topk"},
		{"a flag of the other suite", "bench --suite layer --op indexer_topk", 2, "attention, memory, linear, or --compare"},
		{"a case that no operation has", "bench --case batch=soup", 2, "as heads=64/topk="},
		{"default suite", "bench --op flashmla_ --case topk=61 --batch 2 --heads 8 --topk 61 --reps 1 --profile generic --measure=false",
			0, ""},
		{"unknown profile of bench", "bench --profile soup", 2, strings.Join(tuning.Names(), " ")},
		{"unknown profile of verify", "verify --profile soup", 2, strings.Join(tuning.Names(), " ")},
		{"unknown profile of info", "info --profile soup", 2, strings.Join(tuning.Names(), " ")},
		{"operation of another suite", "bench --suite memory --op indexer_topk", 2, "bench: memory: op: got \"indexer_topk\""},
		{"variant that an operation lacks", "bench --suite memory --variant cm", 2, "for dequantize_and_gather_k_cache"},
		{"no heads", "bench --heads 0", 2, "heads: got 0"},
		{"no context", "bench --suite step --context 0", 2, "context: got 0"},
		{"no timed steps", "bench --reps 0", 2, "reps: got 0"},
		{"no suite", "bench --suite=", 2, "suite: got \"\", want attention"},
		{"no numbers", "bench --batch 1,x", 2, "--batch is \"1,x\", want numbers and ranges"},
		{"help about nothing", "help nothing", 2, "unknown command \"nothing\""},
		{"help about a command", "help bench", 0, ""},
		{"list of one operation", "verify --list --op " + quick, 0, ""},
		{"list by an expression", "verify --list --op ~^fused_", 0, ""},
		{"an expression that is none", "verify --op ~(", 2, "missing closing"},
		{"an expression of cases that is none", "bench --case ~(", 2, "missing closing"},
		{"an expression that finds nothing", "bench --suite memory --op ~soup", 2, "or ~ and a regular expression"},
		{"list of an unknown operation", "verify --list --op nothing", 2, "--list has"},
		{"list in an unknown format", "verify --list -o xml", 2, "--output"},
		{"devices in an unknown format", "info -o xml", 2, "table, json or csv"},
		{"a summary in another format", "info --summary -o json", 2, "summary"},
		{"a list of a kind that models lack", "bench --list --suite layer --model small --kind draft", 2, "draft needs MODEL+N"},
		{"a list as a page", "bench --list -o html", 2, "md, csv or json"},
		{"a file of another ending", "bench --save x.doc", 2, "a name that ends in .md"},
		{"a file in no folder", "bench --save /does/not/exist/x.json", 2, "save"},
		{"two letters that changed places", "bench --devcie 0", 2, "did you mean --device? See vkmla bench --help"},
		{"a longer word", "bench --repetitions 3", 2, "did you mean --reps?"},
		{"a plural", "verify --ops x", 2, "did you mean --op?"},
		{"a letter too few", "info --ouput json", 2, "did you mean --output?"},
		{"another word", "bench --verbose", 2, "unknown flag: --verbose; see vkmla bench --help"},
		{"another letter", "check -z", 2, "see vkmla check --help"},
		{"help", "help", 0, ""},
		{"help of verify", "verify --help", 0, ""},
		{"list", "verify --list", 0, ""},
		{"version", "version", 0, ""},
		{"info", "info", 0, ""},
		{"info of one device", "info --device 0", 0, ""},
		{"info of another device", "info --device nothing", 2, "matches \"nothing\""},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := command(strings.Fields(c.args)...)
			assert.Equal(t, c.code, code, "exit code, want %d\n%s%s", c.code, stdout, stderr)
			assert.False(t, !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" ||
				strings.Count(stderr, "\n") > 1, "standard error %q, want one line with %q", stderr, c.stderr)
			assert.Equal(t, c.code == 2, stdout == "", "standard output %q", stdout)
		})
	}
}

func TestVerifyJSON(t *testing.T) {
	_, stdout, _ := command("verify", "--vectors", wrongGolden(t), "--op", quick, "--op", "nothing", "-o", "json")
	status := map[string]int{}
	var last map[string]any
	for line := range strings.Lines(stdout) {
		last = nil
		require.NoError(t, json.Unmarshal([]byte(line), &last), "in %q", line)
		if _, row := last["op"]; !row {
			continue
		}
		for _, key := range []string{"op", "case", "variant", "class", "status", "error", "bound",
			"device", "driver", "version", "commit", "date"} {
			_, ok := last[key]
			assert.True(t, ok, "row without %q: %s", key, line)
		}
		status[last["status"].(string)]++
	}
	require.Equal(t, 1, status["pass"], "rows: %v", status)
	require.Equal(t, 1, status["fail"], "rows: %v", status)
	assert.Equal(t, 1, status["missing"], "rows: %v", status)
	_, row := last["op"]
	assert.False(t, row || last["ok"] != false || last["fail"] != 1.0 || last["missing"] != 1.0 ||
		last["device"] == "" || last["profile"] != "cpu" || last["version"] == "" || last["date"] == "", "summary: %v", last)
}

// TestVerifyCSV holds that each row stands alone: what it is, where it is from, and the seed.
func TestVerifyCSV(t *testing.T) {
	for args, seed := range map[string]string{"--seed 12": "12", "--vectors " + golden: ""} {
		_, stdout, stderr := command(strings.Fields("verify --op " + quick + " -o csv " + args)...)
		rows := testkit.CSV(t, stdout)
		require.NotEmpty(t, rows, stderr)
		for _, row := range rows {
			assert.Equal(t, []string{quick, "pass", "cpu", seed}, []string{row["op"], row["status"], row["profile"], row["seed"]}, row)
			for _, name := range []string{"device", "driver", "version", "date", "case", "class", "error", "bound", "source"} {
				assert.NotEmpty(t, row[name], name)
			}
		}
	}
}

// TestVerifySeed shows that a seed repeats a run and that without one every run
// is new.
func TestVerifySeed(t *testing.T) {
	seed := func(args ...string) any {
		_, stdout, _ := command(append([]string{"verify", "--op", quick, "-o", "json"}, args...)...)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &v))
		return v["seed"]
	}
	assert.Equal(t, 12.0, seed("--seed", "12"), "seed")
	a, b := seed(), seed()
	assert.False(t, a == b, "two runs with the seed %v", a)
}

func TestVerifyList(t *testing.T) {
	_, stdout, _ := command("verify", "--list", "--op", "inverse_rope", "-o", "json")
	var op struct {
		Op, Class string
		Variants  []string
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &op), "%q", stdout)
	assert.True(t, op.Op == "inverse_rope" && op.Class == "E" &&
		slices.Equal(op.Variants, []string{"base", "da"}), "%q", stdout)
}

// TestVerifyDetails shows that the table breaks lines between words, and that what is
// missing comes with what there is.
func TestVerifyDetails(t *testing.T) {
	var out bytes.Buffer
	rows := newRows(&out, "table")
	rows.row(verify.Row{Status: verify.Fail, Detail: strings.Repeat("x", 40) + " -1515870811"})
	rows.end(verdict{})
	assert.Contains(t, out.String(), "-1515870811", "a number in two lines")
	for args, want := range map[string]string{"--op nothing": "--list has them", "--variant nothing": "--list has them", "--case nothing": "c128, c4"} {
		_, stdout, _ := command(strings.Fields("verify -o json --vectors " + golden + " --op " + quick + " " + args)...)
		assert.Contains(t, stdout, want, "%s: no", args)
	}
}

// TestPrintOp shows that base is called slow where better variants are missing.
func TestPrintOp(t *testing.T) {
	for want, o := range map[string]describe.Variants{
		"x runs base (slow); also da\n": {Runs: "base", Can: []string{"base", "da"}, Missing: map[string][]string{"cm": {"cooperativeMatrix"}}},
		"x runs base; also da\n":        {Runs: "base", Can: []string{"base", "da"}},
		"x runs cm; also base\n":        {Runs: "cm", Can: []string{"cm", "base"}},
		"x runs nothing\n":              {},
	} {
		var out bytes.Buffer
		printOp(&out, "x", o)
		assert.Equal(t, want, strings.Join(strings.Fields(strings.SplitAfter(out.String(), "\n")[0]), " ")+"\n")
	}
}

func TestInfoJSON(t *testing.T) {
	_, stdout, _ := command("info", "-o", "json")
	_, same, _ := command("info", "--json")
	assert.Equal(t, stdout, same, "--json")
	var v struct{ Devices []describe.Device }
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	require.NotEmpty(t, v.Devices, "no devices")
	for _, d := range v.Devices {
		p, err := tuning.Named(d.Profile.Name)
		assert.NoError(t, err, "%s: profile %+v", d.Name, d.Profile)
		assert.NotNil(t, p, "%s: profile %+v", d.Name, d.Profile)
		assert.NotEmpty(t, d.Profile.Why, "%s: profile %+v", d.Name, d.Profile)
		assert.False(t, d.Name == "" || d.Driver == "" || d.APIVersion == "" ||
			d.Limits.MaxStorageBufferRange == 0 || len(d.Features) == 0, "%+v", d)
		for name, op := range d.Ops {
			assert.False(t, d.Usable && op.Runs == "", "%s: nothing runs on %s", name, d.Name)
			for v, missing := range op.Missing {
				assert.NotEmpty(t, missing, "%s: %s does not run and nothing is missing", name, v)
			}
		}
	}
}

// Rows of CSV stand alone: what runs and what does not, of each operation on each device.
func TestInfoCSV(t *testing.T) {
	code, stdout, _ := command("info", "-o", "csv", "--device", "0")
	require.Equal(t, exitOK, code)
	rows := testkit.CSV(t, stdout)
	require.Len(t, rows, len(verify.All()))
	row := rows[slices.IndexFunc(rows, func(r map[string]string) bool { return r["op"] == "flashmla_sparse_decode" })]
	assert.Equal(t, []string{"0", ""}, []string{row["index"], row["problem"]})
	assert.Contains(t, row["can"], row["runs"])
	for _, name := range []string{"device", "driver", "profile", "version", "date", "type", "vulkan", "memory_bytes", "missing"} {
		assert.NotEmpty(t, row[name], name)
	}
}

// A summary has a line for each device, with what runs on it.
func TestInfoSummary(t *testing.T) {
	_, text, _ := command("info", "-o", "json")
	var v struct{ Devices []describe.Device }
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	code, out, _ := command("info", "--summary")
	assert.Equal(t, 0, code)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, len(v.Devices))
	for i, d := range v.Devices {
		assert.Contains(t, lines[i], fmt.Sprintf("%d: %s (%s)", i, d.Name, d.Type))
		assert.Contains(t, lines[i], "attention "+d.Ops["flashmla_sparse_decode"].Runs+",")
	}
	lost := summaryOf(describe.Device{Name: "x", Problem: "no compute queue"})
	assert.Contains(t, lost, "cannot be used: no compute queue")
}

// TestBenchSave holds that files get what they are named for, beside standard output.
func TestBenchSave(t *testing.T) {
	dir := t.TempDir()
	all, lines, page := filepath.Join(dir, "all.json"), filepath.Join(dir, "rows.csv"), filepath.Join(dir, "page.html")
	code, stdout, stderr := command("bench", "--op", "flashmla_sparse_decode", "--case", "topk=61",
		"--batch", "2", "--heads", "8", "--topk", "61", "-r", "1", "--save", all, "--save", lines, "--save", page)
	require.Equal(t, 0, code, stderr)
	assert.Contains(t, stdout, "| flashmla_sparse_decode |")
	data, err := os.ReadFile(all)
	require.NoError(t, err)
	var v struct {
		Version string
		Rows    []map[string]any
	}
	require.NoError(t, json.Unmarshal(data, &v))
	assert.Len(t, v.Rows, 2, "both models' records")
	assert.NotEmpty(t, v.Version)
	data, err = os.ReadFile(lines)
	require.NoError(t, err)
	assert.Equal(t, 3, strings.Count(string(data), "\n"))
	data, err = os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, pagetest.Text(t, data), "flashmla_sparse_decode")
	assert.Equal(t, 2, pagetest.Pictures(t, data)["svg"], "a roofline and bars")
}

// A profile that is asked for is the one that info, verify and bench name.
func TestProfile(t *testing.T) {
	for _, args := range []string{"info -o json", "verify -o json --op " + quick,
		"bench -o json --op flashmla_sparse_decode --case topk=61 --batch 1 --heads 8 --topk 61 --reps 1"} {
		code, stdout, stderr := command(strings.Fields(args + " --profile hopper")...)
		assert.Equal(t, 0, code, "%s, %s", args, stderr)
		assert.Contains(t, stdout, "hopper", "%s, %s", args, stderr)
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, err bytes.Buffer
	assert.Equal(t, 2, run(ctx, []string{"verify", "--op", quick}, &out, &err))
	assert.Equal(t, "vkmla: interrupted\n", err.String())
}

// firstWrite calls f once something is written.
type firstWrite struct {
	bytes.Buffer
	f func()
}

func (w *firstWrite) Write(p []byte) (int, error) {
	w.f()
	return w.Buffer.Write(p)
}

// What was verified until then is said.
func TestInterruptVerify(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, err := &firstWrite{f: cancel}, bytes.Buffer{}
	assert.Equal(t, 2, run(ctx, []string{"verify", "--op", quick, "-o", "json"}, out, &err))
	assert.Equal(t, "vkmla: interrupted\n", err.String())
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, rows, 2)
	assert.Contains(t, rows[0], `"status":"pass"`)
	assert.Contains(t, rows[1], `"ok":false`)
}

// copyGolden copies the folder of recorded cases with its files changed.
func copyGolden(t *testing.T, change func(name string, data []byte) []byte) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"manifest.json", quick + ".npz"} {
		data, err := os.ReadFile(filepath.Join(golden, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), change(name, data), 0o600))
	}
	return dir
}

// wrongGolden returns a folder in which the last byte of one recorded output is
// changed.
func wrongGolden(t *testing.T) string {
	return copyGolden(t, func(name string, data []byte) []byte {
		if name == "manifest.json" {
			return data
		}
		src, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		require.NoError(t, err)
		var buf bytes.Buffer
		dst := zip.NewWriter(&buf)
		for _, f := range src.File {
			r, err := f.Open()
			require.NoError(t, err)
			content, err := io.ReadAll(r)
			r.Close()
			require.NoError(t, err)
			if f.Name == "c128.slot_mapping.npy" {
				content[len(content)-1] ^= 1
			}
			w, err := dst.Create(f.Name)
			require.NoError(t, err)
			w.Write(content)
		}
		dst.Close()
		return buf.Bytes()
	})
}

// TestPipelineTable shows where rows are from, and that what is unknown is no number.
func TestPipelineTable(t *testing.T) {
	var out bytes.Buffer
	rows := []pipelines.Row{{Kernel: "k", Hot: true, Spills: -1}, {Kernel: "l", Hot: true, Subgroup: 32, Constants: []uint32{7, 8}}}
	o := describe.Origin{Device: "D", Driver: "E", Profile: "generic", Version: "v1.2.3", Commit: "abc", Date: "today"}
	require.NoError(t, pipelineTable(&out, o, rows, false))
	assert.Contains(t, out.String(), "D, E\nvkmla v1.2.3, commit abc, today\n")
	assert.Contains(t, out.String(), "| yes | -        |")
	assert.Contains(t, out.String(), "| yes | 32       |")
	text := pipelineCSV(o, rows).RenderCSV()
	assert.Contains(t, text, "D,E,generic,v1.2.3,abc,today,k,,true,0,0,0,0,,0,0,0\n")
	assert.Contains(t, text, "D,E,generic,v1.2.3,abc,today,l,7 8,true,32,0,0,0,0,0,0,0")
}
