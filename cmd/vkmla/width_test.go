package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/check"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// TestWidths holds that what is written for people is no wider than a terminal, but for names of
// files and a device's summary, which is one line: help of every command, tables with long names.
func TestWidths(t *testing.T) {
	defer describe.Fit(describe.Width)
	for _, columns := range []int{60, 79, 100} {
		t.Run(fmt.Sprint(columns), func(t *testing.T) {
			t.Setenv("COLUMNS", fmt.Sprint(columns))
			widths(t, columns)
		})
	}
}

func widths(t *testing.T, columns int) {
	fits := func(what, text string) {
		t.Helper()
		assert.NotEmpty(t, text, what)
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n")
			assert.LessOrEqual(t, utf8.RuneCountInString(line), columns, "%s: %s", what, line)
		}
	}
	for _, c := range commands {
		if name := c().Name(); !c().Hidden {
			_, text, _ := command(name, "--help")
			fits(name+" --help", text)
		}
	}
	_, text, _ := command("--help")
	fits("--help", text)
	for _, args := range []string{"info", "verify --list", "bench --list", "version"} {
		code, text, stderr := command(strings.Fields(args)...)
		assert.Equal(t, exitOK, code, stderr)
		fits(args, text)
	}

	name := "Quadro RTX PRO 6000 Blackwell Max-Q Workstation Edition Generation 2 with a long name"
	origin := describe.Origin{Device: name, Driver: name, Profile: "generic", Version: "v10.20.30", Commit: strings.Repeat("c", 40)}
	var out bytes.Buffer
	rows := newRows(&out, "table")
	one := 1e-9
	for i, detail := range []string{"", "device lacks cooperativeMatrix, coopmat.f16.f32, shaderInt64", strings.Repeat("word ", 50)} {
		rows.row(verify.Row{Op: "compressor_indexer_k_mxfp4", Case: strings.Repeat("h64_swa128_", 1+3*i), Variant: "twopass-cmb",
			Class: "T", Status: verify.Skip, Error: &one, Bound: &one, Detail: detail})
	}
	rows.end(verdict{Origin: origin})
	fits("verify", out.String())

	out.Reset()
	const much = 1 << 45
	require.NoError(t, writePlan(&out, "table", origin, []planRow{
		{Context: 1 << 20, Sessions: 1 << 16, Session: much, Caches: much, Weights: much, Steps: much, Total: much, Free: much},
		{Context: 1 << 20, Sessions: 1 << 16, Problem: strings.Repeat("pipeline: new engine: ", 9)}}))
	fits("plan", out.String())

	out.Reset()
	kernel := pipelines.Row{Kernel: strings.Repeat("kernel_", 9), Constants: make([]uint32, 40)}
	require.NoError(t, pipelineTable(&out, origin, []pipelines.Row{kernel}, true))
	fits("pipelines", out.String())

	out.Reset()
	choice := pipelines.Choice{Op: "v4.1 selection of candidates", Tokens: 4096, Kernels: []pipelines.Chosen{{Row: kernel}}}
	require.NoError(t, chosenTable(&out, origin, []pipelines.Choice{choice}, "md"))
	fits("pipelines --chosen", out.String())

	out.Reset()
	long := check.Result{Group: check.GroupTimes, Name: "v41-c128a, decode, 32 sequences of 131072 tokens", About: name, Why: name + name,
		Times: []bench.LayerRow{{Status: "ok"}}}
	report := check.Report{Begun: time.Now(), Device: &describe.Device{Name: name, DriverInfo: name}}
	for _, s := range check.Statuses {
		for range 5 {
			long.Status = s
			report.Results = append(report.Results, long)
		}
	}
	require.NoError(t, printCheck(&out, &report, &check.Files{HTML: "r.html", JSON: "r.json"}))
	fits("check", out.String())
}
