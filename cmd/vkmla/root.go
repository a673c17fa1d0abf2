package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// Exit codes.
const (
	exitOK    = 0
	exitWrong = 1 // something asked for is wrong or missing
	exitUsage = 2 // the command could not do its work
	exitLate  = 3 // of check: nothing is wrong, but something did not end in time
)

// errWrong ends a command with exitWrong after it has said itself what is wrong.
var errWrong = errors.New("not everything passed")

// errLate ends check with exitLate, likewise.
var errLate = errors.New("not everything ended in time")

// commands make the sub-commands, each in a file of its own.
var commands = []func() *cobra.Command{infoCommand, checkCommand, verifyCommand, runCommand, benchCommand, pipelinesCommand,
	planCommand, versionCommand, manCommand, checkWorkerCommand}

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "vkmla",
		Short:         "DeepSeek-V4 sparse attention on Vulkan",
		Long:          "vkmla runs, checks and times the sparse attention of DeepSeek-V4 on a Vulkan device.",
		Version:       describe.Running().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(flagError)
	describe.Fit(columnsOf(stdout))
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", describe.Width)))
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var text bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&text)
		help(cmd, args)
		cmd.SetOut(out)
		io.WriteString(out, describe.Refit(text.String()))
	})
	for _, c := range commands {
		root.AddCommand(c())
	}
	complete(root)
	root.SetArgs(args)
	read, stop := context.WithCancel(ctx)
	defer stop()
	out := &keptWriter{w: plainWriter{stdout}, stop: stop}
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(read)
	if out.err != nil {
		err = fmt.Errorf("output: %w", out.err)
	}
	switch {
	case errors.Is(err, syscall.EPIPE): // who reads has enough
	case err == nil:
		return exitOK
	case errors.Is(err, errWrong):
		return exitWrong
	case errors.Is(err, errLate):
		return exitLate
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		fmt.Fprintln(stderr, "vkmla: interrupted")
	default:
		fmt.Fprintln(plainWriter{stderr}, "vkmla:", strings.Join(strings.Fields(err.Error()), " "))
	}
	return exitUsage
}

// helpCommand is cobra's, but fails for an unknown command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return fmt.Errorf("unknown command %q for %q", rest[0], about.CommandPath())
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// deviceFlags are the flags of all commands that open a device.
func deviceFlags(fl *pflag.FlagSet, device, profile *string) {
	fl.StringVar(device, "device", "", "device: index, part of its name, or UUID (default the first GPU, else the first processor)")
	fl.StringVar(profile, "profile", "", "tuning profile instead of the device's own: "+strings.Join(tuning.Names(), ", "))
}

// openDevice opens the device that a selector picks, with a tuning profile, its own unless one
// is named; close releases it.
func openDevice(selector, profile string) (dev *vk.Device, close func(), err error) {
	if err := checkProfile(profile); err != nil {
		return nil, nil, err
	}
	return openDeviceWith(selector, vk.DeviceOptions{PipelineCacheDir: pipelineCacheDir(), Profile: profile})
}

// measureFlag is the flag of commands that run what was timed.
func measureFlag(fl *pflag.FlagSet, measure *bool) {
	fl.BoolVar(measure, "measure", true, "on a device whose profile was never measured, time kernels once and run the fastest")
}

// measured has the builds timed, or those run that were. Where the results cannot be kept, the
// ladder's builds run.
func measured(ctx context.Context, dev *vk.Device, stderr io.Writer) error {
	dir := pipelineCacheDir()
	if dir == "" {
		return nil
	}
	err := pipeline.Measure(ctx, dev, dir)
	if ctx.Err() != nil || errors.Is(err, vk.ErrDeviceLost) {
		return err
	}
	if err != nil {
		fmt.Fprintln(stderr, "vkmla: builds of kernels were not timed:", err)
	}
	return nil
}

// checkProfile demands the name of a tuning profile, or none.
func checkProfile(name string) error {
	if name == "" {
		return nil
	}
	_, err := tuning.Named(name)
	return err
}

func openDeviceWith(selector string, o vk.DeviceOptions) (dev *vk.Device, close func(), err error) {
	in, err := newInstance()
	if err != nil {
		return nil, nil, err
	}
	a, err := in.Pick(selector)
	if err == nil {
		dev, err = a.Open(o)
	}
	if err != nil {
		in.Close()
		return nil, nil, err
	}
	return dev, func() { dev.Close(); in.Close() }, nil
}

// pipelineCacheDir returns where compiled pipelines are kept between runs, empty
// (none) where the system names no place for such files.
func pipelineCacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "vkmla")
}
