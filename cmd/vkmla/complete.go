package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/tuning"
)

// completions are the values that a shell completes, by command and flag; "" stands for all
// commands that have the flag.
var completions = []struct {
	command, flag string
	values        func() []string
}{
	{"", "profile", tuning.Names},
	{"", "device", deviceNames},
	{"", "keys", fixed("fp8", "mxfp4")},
	{"", "store", fixed("v4", "v41")},
	{"bench", "output", fixed(bench.Formats...)},
	{"verify", "output", fixed(rowFormats...)},
	{"run", "output", fixed(rowFormats...)},
	{"plan", "output", fixed(rowFormats...)},
	{"info", "output", fixed(rowFormats...)},
	{"pipelines", "output", fixed("md", "csv", "json")},
	{"", "output", fixed("table", "json")},
	{"bench", "suite", func() []string { return suites }},
	{"bench", "compare", fixed("peers.json")},
	{"", "model", fixed(bench.Models...)},
	{"", "kind", fixed(bench.Kinds...)},
	{"", "weights", fixed(bench.WeightFormats...)},
	{"bench", "op", benchOps},
	{"", "op", opNamesOf(func(op verify.Op) []string { return []string{op.Name} })},
	{"", "variant", opNamesOf(func(op verify.Op) []string { return variantNames(op.Variants) })},
}

func fixed(values ...string) func() []string { return func() []string { return values } }

// opNamesOf returns the names that operations have, each once.
func opNamesOf(of func(verify.Op) []string) func() []string {
	return func() (list []string) {
		for _, op := range verify.All() {
			list = append(list, of(op)...)
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
}

// benchOps returns the operations that bench times.
func benchOps() (list []string) {
	for _, op := range bench.SuiteOps(comparison) {
		list = append(list, op.Name)
	}
	return list
}

func deviceNames() (list []string) {
	in, err := newInstance()
	if err != nil {
		return nil
	}
	defer in.Close()
	for _, a := range in.Adapters() {
		list = append(list, a.Name)
	}
	return list
}

// complete gives the flags of all commands the values that a shell completes. What names a file,
// as the model of run and plan does, is left to the shell.
func complete(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		for _, c := range completions {
			files := c.flag == "model" && cmd.Name() != "bench"
			if files || c.command != "" && c.command != cmd.Name() || cmd.Flags().Lookup(c.flag) == nil {
				continue
			}
			values := cobra.CompletionFunc(func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
				before, last := "", begun
				if at := strings.LastIndex(begun, ","); at >= 0 {
					before, last = begun[:at+1], begun[at+1:]
				}
				var list []string
				for _, v := range c.values() {
					if strings.HasPrefix(v, last) {
						list = append(list, before+v)
					}
				}
				return list, cobra.ShellCompDirectiveNoFileComp
			})
			if _, given := cmd.GetFlagCompletionFunc(c.flag); given {
				continue // the row of the command itself
			}
			if err := cmd.RegisterFlagCompletionFunc(c.flag, values); err != nil {
				panic(err) // a name that is not a flag
			}
		}
	}
}
