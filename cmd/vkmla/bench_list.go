package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/vk"
)

// listBench lists the cases of the suite, or of all, without a device.
func listBench(f benchFlags, one bool, stdout io.Writer) error {
	var list []bench.Listed
	names := suites
	if one {
		names = []string{f.suite}
	}
	for _, name := range names {
		cases, err := bench.List(name, f.opOptions(), f.layerOptions())
		if err != nil {
			return err
		}
		list = append(list, cases...)
	}
	text, rows := describe.NewTable(2, "suite", "op", "case"), table.NewWriter()
	rows.AppendHeader(table.Row{"suite", "op", "case"})
	for _, x := range list {
		text.Add([]any{x.Suite, x.Op, x.Case})
		rows.AppendRow(table.Row{x.Suite, x.Op, x.Case})
	}
	var err error
	switch f.output {
	case "md":
		_, err = fmt.Fprintln(stdout, text)
	case "csv":
		_, err = fmt.Fprintln(stdout, rows.RenderCSV())
	case "json":
		err = json.NewEncoder(stdout).Encode(map[string]any{"cases": list})
	default:
		return &vk.ArgumentError{Op: "bench: list", Arg: "output", Got: strconv.Quote(f.output), Want: "md, csv or json"}
	}
	if err != nil {
		return fmt.Errorf("bench: output: %w", err)
	}
	return nil
}
