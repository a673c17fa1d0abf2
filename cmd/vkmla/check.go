package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vkmla/vkmla/internal/lab/check"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// checkLong precedes the flags in --help.
const checkLong = `Check says what of vkmla is right on a device, in a few minutes: the device's limits,
every operation against its definition, a whole layer of each kind, sequences that are cut,
shared and restored against the same in one piece, and the times of decode steps and
prefills. It prints what is right, what is wrong and what was not run, and writes a report,
PREFIX.json for programs and PREFIX.html for people, which can be attached to an issue. The
report has versions, driver, device and results, and says nothing of the user.

The checks run in a process of their own. One that crashes is called crashed, and the others
go on in a new process. One that says nothing for --timeout is told to stop and is
called timed out, which is not wrong. If it does not stop, the process is ended and later checks
are not run, because the device hangs. On Linux a process that still works has that time of each
processor, so a busy machine does not count. What does not fit into --budget is not run, and said
to be so. Each group of checks has a share of it and begins with what is short, so that all are in
a report; an operation whose part of the share is over leaves its larger cases out.

Exit status: 0 if everything that was run is right, 1 if something is wrong or crashed, 2 if check
could not do its work, as without a device, 3 if nothing is wrong but something timed out. A second
interrupt ends check at once.`

type checkFlags struct {
	report          string
	device, profile string
	seed            uint64
	quick           bool
	budget, timeout time.Duration
	output          string
	asJSON          bool
}

func checkCommand() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check a device and write a report of it",
		Long:  checkLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seed") {
				f.seed = uint64(rand.Uint32()) // short enough to type
			}
			return runCheck(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.report, "report", "", "files to write, without .json and .html (default vkmla-check-DEVICE-TIME in this folder)")
	fl.DurationVar(&f.budget, "budget", 5*time.Minute, "time for all checks; what does not fit is not run")
	fl.StringVarP(&f.output, "output", "o", "table", "table or json, one object per line")
	fl.BoolVar(&f.asJSON, "json", false, "the same as -o json")
	if err := fl.MarkHidden("json"); err != nil {
		panic(err) // a name that is not a flag
	}
	f.shared(fl)
	return cmd
}

// shared are the flags that the worker has, too.
func (f *checkFlags) shared(fl *pflag.FlagSet) {
	deviceFlags(fl, &f.device, &f.profile)
	fl.Uint64Var(&f.seed, "seed", 0, "seed of everything random (default a new one every time)")
	fl.DurationVar(&f.timeout, "timeout", time.Minute, "a check that says nothing for this long has timed out")
	fl.BoolVar(&f.quick, "quick", false, "the least that says something: few cases, one variant, one layer, short cuts, short times")
}

// workerName is the command that check runs in a process of its own.
const workerName = "check-worker"

func checkWorkerCommand() *cobra.Command {
	var f checkFlags
	var handle uint64
	cmd := &cobra.Command{
		Use:    workerName,
		Short:  "What check runs in a process of its own",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := os.NewFile(uintptr(handle), "check")
			if _, err := out.Stat(); err != nil {
				return fmt.Errorf("%s: only check runs this: %w", workerName, err)
			}
			signal.Ignore(os.Interrupt) // check decides when to stop
			return check.Work(cmd.InOrStdin(), out, check.All(f.quick), check.WorkerOptions{Seed: f.seed, Quick: f.quick, Open: f.open})
		},
	}
	cmd.Flags().Uint64Var(&handle, "out", 0, "the file, or handle, on which to talk to check")
	if err := cmd.MarkFlagRequired("out"); err != nil {
		panic(err) // a name that is not a flag
	}
	f.shared(cmd.Flags())
	return cmd
}

// open opens the device for a worker.
func (f *checkFlags) open() (dev *vk.Device, about describe.Device, devices int, close func(), err error) {
	in, err := newInstance()
	if err != nil {
		return nil, about, 0, nil, err
	}
	devices = len(in.Adapters())
	a, err := in.Pick(f.device)
	if err == nil {
		about = describe.Of(a, f.profile, nil, verify.RandomCases(0))
		about.UUID = "" // of one card among its like
		o := vk.DeviceOptions{PipelineCacheDir: pipelineCacheDir(), Profile: f.profile, HangAfter: f.timeout}
		if limit, _ := tuning.Watchdog(a); limit == 0 { // a processor: load is no hang, and check looks at what its process works
			o.HangAfter = -1
		}
		dev, err = a.Open(o)
	}
	if err != nil {
		in.Close()
		return nil, about, devices, nil, err
	}
	return dev, about, devices, func() { dev.Close(); in.Close() }, nil
}

// worker returns the command line of a worker with these flags.
func (f *checkFlags) worker() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	return []string{self, workerName, "--device=" + f.device, "--profile=" + f.profile, fmt.Sprintf("--seed=%d", f.seed),
		fmt.Sprintf("--quick=%t", f.quick), "--timeout=" + f.timeout.String()}, nil
}

func (f *checkFlags) settle() error {
	if f.asJSON {
		f.output = "json"
	}
	if f.output != "table" && f.output != "json" {
		return &vk.ArgumentError{Op: "check", Arg: "output", Got: strconv.Quote(f.output), Want: "table or json"}
	}
	for _, x := range []struct {
		name string
		d    time.Duration
	}{{"budget", f.budget}, {"timeout", f.timeout}} {
		if x.d < time.Second {
			return &vk.ArgumentError{Op: "check", Arg: x.name, Got: x.d.String(), Want: "1s or more"}
		}
	}
	return checkProfile(f.profile)
}

func runCheck(ctx context.Context, f checkFlags, stdout, stderr io.Writer) error {
	if err := f.settle(); err != nil {
		return err
	}
	worker, err := f.worker()
	if err != nil {
		return err
	}
	r := &check.Report{Form: check.Form, Program: describe.Running(), Begun: time.Now().UTC().Truncate(time.Second),
		Seed: f.seed, Quick: f.quick, Budget: f.budget.String(), Results: []check.Result{}}
	files, err := f.files(r)
	if err != nil {
		return err
	}
	list := check.All(f.quick)
	p := newCheckProgress(stderr, len(list))
	var failed error                                                                                     // to write what there is so far
	o := check.Options{Worker: worker, Budget: f.budget, Silence: f.timeout + f.timeout/4, Grace: grace, // a wait on the device ends before
		Doing: func(done, total int, c check.Check, what string) {
			if what == "" && r.Device != nil { // what is there if the machine goes down in this one
				r.Running = c.ID()
				failed = errors.Join(failed, files.WriteJSON(r))
			}
			p.doing(done, c, what)
		},
		Opened: func(describe.Device) { files, err = f.files(r) },
		Result: func(x check.Result) {
			if r.Device != nil { // else one error says why nothing is run
				p.result(x)
			}
		},
	}
	if f.output == "json" {
		enc, show := json.NewEncoder(stdout), o.Result
		o.Result = func(x check.Result) {
			show(x)
			failed = errors.Join(failed, enc.Encode(x))
		}
	}
	check.Run(ctx, list, o, r)
	p.line.clear()
	r.Ended, r.Running, r.Seconds = true, "", time.Since(r.Begun).Seconds()
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	return f.conclude(ctx, r, files, stdout)
}

// grace bounds the time that a check takes to stop when it is told to.
const grace = 30 * time.Second

// files returns those of the report, named after its device where no name was given.
func (f *checkFlags) files(r *check.Report) (*check.Files, error) {
	if f.report != "" {
		return check.NewFiles(f.report)
	}
	name := ""
	if r.Device != nil {
		name = r.Device.Name
	}
	return check.NewFiles(check.DefaultPrefix(name, r.Begun))
}

// conclude writes the report and says what is in it.
func (f *checkFlags) conclude(ctx context.Context, r *check.Report, files *check.Files, stdout io.Writer) error {
	switch {
	case r.Device == nil && ctx.Err() != nil:
		return ctx.Err()
	case r.Device == nil && r.Devices > 0 && f.device != "":
		return fmt.Errorf("check: %s", r.Problem) // there are devices, and none of them was meant
	}
	if err := files.Write(r); err != nil {
		return err
	}
	if r.Problem != "" {
		return fmt.Errorf("check: %s; the report is %s", r.Problem, files.HTML)
	}
	var err error
	if f.output == "json" {
		err = json.NewEncoder(stdout).Encode(newCheckVerdict(r, files))
	} else {
		err = printCheck(stdout, r, files)
	}
	switch {
	case err != nil:
		return fmt.Errorf("check: output: %w", err)
	case ctx.Err() != nil:
		return ctx.Err()
	case r.Bad():
		return errWrong
	case r.Late():
		return errLate
	case r.Count("", check.Right) == 0:
		return fmt.Errorf("check: nothing was run; the report is %s", files.HTML)
	}
	return nil
}
