package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/describe"
	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

type verifyFlags struct {
	opts    verify.Options
	device  string
	profile string
	output  string
	list    bool
}

func verifyCommand() *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check operations on a device against their definition",
		Long: `Verify runs operations on a device and compares their results.

Without --vectors, it compares random cases with the Go reference of each operation. With
--vectors, it compares the cases of a folder of recorded arrays (a manifest.json and one
.npz for each operation) with what was recorded.

There is a row for every case and variant. CLASS is what is demanded:

  E  equal bytes
  B  equal bytes, except where rounding is undecided
  S  the same set of indices
  T  agreement within tolerances

ERROR is the value of the criterion that came closest to its BOUND. For class E it counts
the elements that differ. For class T it is an absolute or a relative error, the error of
the whole array, or, with weights rounded to bf16, the share used of what rounding explains.

STATUS is pass, fail, skip (the device lacks a feature, or the recorded case is
informational) or missing (an unknown operation or name). Recorded outputs that an
operation does not give here are listed as not compared. info --help explains the names of
variants. run --expect compares recorded layers of a checkpoint.

Exit status: 0 if everything asked for passed, 1 if something failed or is missing, 2 if
verify could not do its work.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seed") {
				f.opts.Seed = uint64(rand.Uint32()) // short enough to type
			}
			return runVerify(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.opts.Vectors, "vectors", nil, "folder of recorded cases; may be given more than once")
	fl.StringSliceVar(&f.opts.Ops, "op", nil, "only this operation, or ~ and a regular expression; may be given more than once")
	fl.StringSliceVar(&f.opts.Cases, "case", nil, "only this case, as its name or as operation.case, "+
		"or ~ and a regular expression; may be given more than once")
	fl.StringSliceVar(&f.opts.Variants, "variant", nil, "only this variant; may be given more than once")
	deviceFlags(fl, &f.device, &f.profile)
	fl.StringVarP(&f.output, "output", "o", "table", "table or json, one object per line")
	fl.Uint64Var(&f.opts.Seed, "seed", 0, "seed of the random cases (default a new one every time)")
	fl.BoolVar(&f.list, "list", false, "list the operations, or those of --op, with class and variants, and stop")
	return cmd
}

func runVerify(ctx context.Context, f verifyFlags, stdout, stderr io.Writer) error {
	if f.output != "table" && f.output != "json" {
		return fmt.Errorf("verify: --output is %q, want table or json", f.output)
	}
	if err := errors.Join(verify.CheckPatterns("verify", "op", f.opts.Ops), verify.CheckPatterns("verify", "case", f.opts.Cases),
		verify.CheckPatterns("verify", "variant", f.opts.Variants)); err != nil {
		return err
	}
	if f.list {
		return listOps(stdout, f.opts.Ops, f.output)
	}
	out := newRows(stdout, f.output)
	dev, close, err := openDevice(f.device, f.profile)
	if err != nil {
		return err
	}
	defer close()
	p := newProgress(stderr)
	f.opts.Progress = func(done, total int, op, name string) {
		p.show("%d/%d%s %s %s", done, total, p.left(done, total), op, name)
	}
	sum, err := verify.Run(ctx, dev, f.opts, func(r verify.Row) { p.clear(); out.row(r) })
	p.clear()
	if err != nil {
		return withHint(err, f.opts.Vectors)
	}
	out.end(newVerdict(dev, sum, f.opts))
	switch {
	case sum.OK():
		return nil
	case sum.Pass+sum.Fail+sum.Missing == 0:
		return fmt.Errorf("verify: nothing ran on %s: all %d rows were skipped", dev.Adapter().Name, sum.Skip)
	}
	return errWrong
}

// withHint says of a folder without a manifest that it is a checkpoint's.
func withHint(err error, folders []string) error {
	for _, dir := range folders {
		_, e := os.Stat(filepath.Join(dir, "config.json"))
		if e == nil && errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w (%s is a checkpoint: its layers are compared by vkmla run --expect)", err, dir)
		}
	}
	return err
}

// listOps prints operations, all unless some are named, with their classes and variants.
func listOps(stdout io.Writer, names []string, output string) error {
	ops := verify.All()
	if len(names) > 0 {
		for _, name := range names {
			if !slices.ContainsFunc(ops, func(op verify.Op) bool { return isNamed(op.Name, name) }) {
				return fmt.Errorf("verify: --op is %q, want one of those that --list has", name)
			}
		}
		ops = slices.DeleteFunc(ops, func(op verify.Op) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return isNamed(op.Name, name) })
		})
	}
	enc := json.NewEncoder(stdout)
	for _, op := range ops {
		variants, err := variantNames(op.Variants), error(nil)
		if output == "json" {
			err = enc.Encode(map[string]any{"op": op.Name, "class": op.Class, "variants": variants})
		} else {
			_, err = fmt.Fprintf(stdout, "%s %s %s\n", op.Name, op.Class, strings.Join(variants, " "))
		}
		if err != nil {
			return fmt.Errorf("verify: output: %w", err)
		}
	}
	return nil
}

// isNamed tells whether an operation has this name, or one that the expression finds.
func isNamed(op, name string) bool { return op == name || verify.Matches(name, op) }

func variantNames(vs []vk.Variant) []string {
	var names []string
	for _, v := range vs {
		names = append(names, v.Name)
	}
	return names
}

// verdict is the last object of the output; it has no field "op".
type verdict struct {
	OK      bool   `json:"ok"`
	Device  string `json:"device"`
	Driver  string `json:"driver"`
	Profile string `json:"profile"` // of tuning
	Version string `json:"version"` // of vkmla
	Commit  string `json:"commit"`  // "" if the build did not record it
	Date    string `json:"date"`    // RFC 3339 in UTC
	verify.Summary
	Seed *uint64 `json:"seed,omitempty"` // absent with recorded cases
}

func newVerdict(dev *vk.Device, sum verify.Summary, o verify.Options) verdict {
	a, program := dev.Adapter(), describe.Running()
	v := verdict{Version: program.Version, Commit: program.Commit, Date: time.Now().UTC().Format(time.RFC3339),
		OK: sum.OK(), Device: a.Name, Driver: strings.TrimSpace(a.DriverName + " " + a.DriverInfo),
		Profile: tuning.Of(dev).Name, Summary: sum}
	if len(o.Vectors) == 0 {
		v.Seed = &o.Seed
	}
	return v
}

// rowWriter prints rows as they come, and the verdict.
type rowWriter interface {
	row(verify.Row)
	end(verdict)
}

// newRows prints as output says, table or json.
func newRows(w io.Writer, output string) rowWriter {
	if output == "json" {
		return &jsonRows{json.NewEncoder(w)}
	}
	return newTableRows(w)
}

type jsonRows struct{ enc *json.Encoder }

func (j *jsonRows) row(r verify.Row) { j.enc.Encode(r) }
func (j *jsonRows) end(v verdict)    { j.enc.Encode(v) }

// tableRows collects rows, because the columns' widths depend on all of them.
type tableRows struct {
	w io.Writer
	t table.Writer
}

func newTableRows(w io.Writer) *tableRows {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Options.SeparateRows = false
	t.AppendHeader(table.Row{"op", "case", "variant", "class", "status", "error", "bound", "detail"})
	t.SetColumnConfigs([]table.ColumnConfig{{Name: "detail", WidthMax: 70, WidthMaxEnforcer: text.WrapSoft}})
	return &tableRows{w, t}
}

func (t *tableRows) row(r verify.Row) {
	detail := r.Detail
	if r.Status == verify.Pass {
		detail = "" // a criterion that is met needs no words
		if len(r.Unjudged) > 0 {
			detail = "not compared: " + strings.Join(r.Unjudged, ", ")
		}
	}
	t.t.AppendRow(table.Row{r.Op, r.Case, r.Variant, r.Class, r.Status, number(r.Error), number(r.Bound), detail})
}

func (t *tableRows) end(v verdict) {
	fmt.Fprintln(t.w, t.t.Render())
	fmt.Fprintf(t.w, "%s, %s, tuning profile %s: %d passed, %d failed, %d skipped, %d missing\n", v.Device, v.Driver, v.Profile,
		v.Pass, v.Fail, v.Skip, v.Missing)
	if v.Seed != nil {
		fmt.Fprintf(t.w, "random cases of seed %d; --seed %d repeats them\n", *v.Seed, *v.Seed)
	}
}

func number(x *float64) string {
	switch {
	case x == nil:
		return ""
	case *x > 1e300:
		return "inf"
	}
	return fmt.Sprintf("%.3g", *x)
}
