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

	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/describe"
	_ "github.com/vkmla/vkmla/internal/lab/layers" // the operation layer
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/tuning"
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
	fl.StringVarP(&f.output, "output", "o", "table", "table, csv or json, one object per line")
	fl.Uint64Var(&f.opts.Seed, "seed", 0, "seed of the random cases (default a new one every time)")
	fl.BoolVar(&f.list, "list", false, "list the operations, or those of --op, with class and variants, and stop")
	return cmd
}

func runVerify(ctx context.Context, f verifyFlags, stdout, stderr io.Writer) error {
	if err := checkRowFormat("verify", f.output); err != nil {
		return err
	}
	if err := errors.Join(verify.CheckPatterns("verify", "op", f.opts.Ops), verify.CheckPatterns("verify", "case", f.opts.Cases),
		verify.CheckPatterns("verify", "variant", f.opts.Variants)); err != nil {
		return err
	}
	if f.list {
		return listOps(stdout, f.opts.Ops, f.output)
	}
	dev, close, err := openDevice(f.device, f.profile)
	if err != nil {
		return err
	}
	defer close()
	out, origin := newRows(stdout, f.output), describe.OriginOf(dev.Adapter(), f.profile)
	out.begin(origin, seedOf(f.opts))
	p := newProgress(stderr)
	f.opts.Progress = func(done, total int, op, name string) {
		p.show("%d/%d%s %s %s", done, total, p.left(done, total), op, name)
	}
	sum, err := verify.Run(ctx, dev, f.opts, func(r verify.Row) { p.clear(); out.row(r) })
	p.clear()
	if err == nil || sum.Pass+sum.Fail > 0 { // what ran counts, whatever ended it
		out.end(verdict{err == nil && sum.OK(), origin, sum, seedOf(f.opts)})
	}
	if err != nil {
		return withHint(err, f.opts.Vectors)
	}
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
	if output == "csv" {
		fmt.Fprintln(stdout, "op,class,variants")
	}
	enc := json.NewEncoder(stdout)
	for _, op := range ops {
		variants, err := variantNames(op.Variants), error(nil)
		switch output {
		case "json":
			err = enc.Encode(map[string]any{"op": op.Name, "class": op.Class, "variants": variants})
		case "csv":
			_, err = fmt.Fprintf(stdout, "%s,%s,%s\n", op.Name, op.Class, strings.Join(variants, " "))
		default:
			_, err = fmt.Fprintln(stdout, describe.Wrap(fmt.Sprintf("%s %s %s", op.Name, op.Class, strings.Join(variants, " ")), "    "))
		}
		if err != nil {
			return fmt.Errorf("verify: output: %w", err)
		}
	}
	return nil
}

// isNamed reports whether an operation has this name, or one that the expression finds.
func isNamed(op, name string) bool { return op == name || verify.Matches(name, op) }

func variantNames(vs []tuning.Variant) []string {
	var names []string
	for _, v := range vs {
		names = append(names, v.Name)
	}
	return names
}
