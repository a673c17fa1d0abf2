package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestCompletion holds what a shell is told about values, and that the command for it is shown.
func TestCompletion(t *testing.T) {
	for args, want := range map[string][]string{
		"bench --suite l": {"layer", "linear"},
		"bench -o ":       {"md", "csv", "json", "benchstat"},
		"verify -o ":      {"table", "csv", "json"},
		"plan -o ":        {"table", "csv", "json"},
		"pipelines -o ":   {"md", "csv", "json"},
		"bench --op fl":   {"flashmla_sparse_decode", "flashmla_sparse_prefill"},
		"verify --op touch,fused_i": {
			"touch,fused_indexer_q_rope_quant_fp8", "touch,fused_indexer_q_rope_quant_mxfp4", "touch,fused_inv_rope_fp8_quant"},
		"info --profile h": {"hopper"},
		"run --keys ":      {"fp8", "mxfp4"},
	} {
		code, stdout, _ := command(append([]string{"__complete"}, strings.Split(args, " ")...)...)
		assert.Equal(t, exitOK, code, args)
		list := strings.Fields(stdout)
		assert.Subset(t, list, want, args)
		assert.Contains(t, list[len(list)-1], ":4", "%s: no files", args)
	}
	for _, name := range []string{"run", "plan"} {
		_, stdout, _ := command("__complete", name, "--model", "")
		assert.Equal(t, ":0\n", stdout, "%s: a folder", name)
	}
	_, stdout, _ := command("__complete", "bench", "--op", "c")
	assert.NotContains(t, stdout, "candidate_blocks", "an operation that bench does not time")
	_, stdout, _ = command("help")
	assert.Contains(t, stdout, "completion")
}

// TestManual holds that the manual has each command with its flags, and no line that man would
// take for a command.
func TestManual(t *testing.T) {
	code, stdout, _ := command("man")
	assert.Equal(t, exitOK, code)
	for _, want := range []string{".SH BENCH\n", ".SH CHECK\n", "\\-\\-batch numbers", "\\-\\-vectors"} {
		assert.Contains(t, stdout, want)
	}
	assert.NotContains(t, stdout, "WORKER")
	for line := range strings.Lines(stdout) {
		if strings.HasPrefix(line, ".") {
			assert.Regexp(t, `^\.(TH|SH|B|I|nf|fi)\b`, line)
		}
	}
	assert.Equal(t, "\\&.a\\-b \\e\n\\&'c", roff(".a-b \\\n'c"))
}
