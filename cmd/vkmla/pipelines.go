package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/pipelines"
	"github.com/vkmla/vkmla/vk"
)

func pipelinesCommand() *cobra.Command {
	var device, profile, output string
	var all, chosen bool
	cmd := &cobra.Command{
		Use:   "pipelines",
		Short: "Compile every kernel and show registers, shared memory and occupancy",
		Long: `Pipelines compiles the kernels of all operations for V4-Flash and V4-Pro, in every
variant that the device can run, and shows what its driver's compiler says: registers,
shared memory, spills, how many subgroups fit, bytes of code. Kernels that a step
spends its time in are marked as hot; none of them may spill. Where the driver counts
bytes of local memory, as NVIDIA's does, up to 16 of an invocation are named and not
judged: they are four registers at most, whereas arrays that moved to memory, which make
a kernel several times slower, read 512 and more. Nothing is executed, so that a
driver without its hardware is enough.

Numbers after a kernel's name are its specialisation constants in the order of
constant_id: its shader says what they are, shaders/NAME.comp or the source of what
shaders/choices.go names for it. Where the subgroup is "-", the driver chose its size.

Exit status: 0 if no hot kernel spills, 1 if one does, 2 if pipelines could not do its
work, as on a driver that does not tell (pipelineExecutableInfo).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "md" && output != "json" && output != "csv" {
				return &vk.ArgumentError{Op: "pipelines", Arg: "output", Got: strconv.Quote(output), Want: "md, csv or json"}
			}
			if err := checkProfile(profile); err != nil {
				return err
			}
			if chosen {
				return runChosen(device, profile, output, cmd.OutOrStdout())
			}
			return runPipelines(cmd.Context(), device, profile, output, all, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	deviceFlags(fl, &device, &profile)
	fl.StringVarP(&output, "output", "o", "md", "md, csv or json")
	fl.BoolVar(&all, "all", false, "all kernels, not only hot ones (md)")
	fl.BoolVar(&chosen, "chosen", false, "what operations of V4-Flash and V4.1-Flash launch")
	return cmd
}

func runPipelines(ctx context.Context, device, profile, output string, all bool, stdout, stderr io.Writer) error {
	dev, close, err := openDeviceWith(device, vk.DeviceOptions{Statistics: true, Profile: profile})
	if err != nil {
		return err
	}
	defer close()
	if missing := dev.Caps().Missing([]string{"pipelineExecutableInfo"}); missing != nil {
		return &vk.MissingError{What: "pipelines", Device: dev.Adapter().Name, Required: missing, Missing: missing}
	}
	line := newProgress(stderr)
	defer line.clear()
	if err := pipelines.Build(ctx, dev, func(kernel string) { line.show("compiling %s", kernel) }); err != nil {
		return err
	}
	line.clear()
	rows, err := pipelines.Report(dev)
	if err != nil {
		return err
	}
	bad := pipelines.Wrong(rows)
	origin := describe.OriginOf(dev.Adapter(), profile)
	switch output {
	case "json":
		err = json.NewEncoder(stdout).Encode(struct {
			describe.Origin
			Rows []pipelines.Row `json:"rows"`
		}{origin, rows})
	case "csv":
		_, err = fmt.Fprintln(stdout, pipelineCSV(origin, rows).RenderCSV())
	default:
		err = pipelineTable(stdout, origin, rows, all)
	}
	if err != nil {
		return fmt.Errorf("pipelines: output: %w", err)
	}
	if len(bad) > 0 {
		return errWrong
	}
	return nil
}

// runChosen shows what operations launch, and what the compiler made of it.
func runChosen(device, profile, output string, stdout io.Writer) error {
	dev, close, err := openDeviceWith(device, vk.DeviceOptions{Profile: profile})
	if err != nil {
		return err
	}
	defer close()
	a, origin := dev.Adapter(), describe.OriginOf(dev.Adapter(), profile)
	list, err := pipelines.Inspect(a, profile)
	if err != nil {
		return err
	}
	return chosenTable(stdout, origin, list, output)
}

func chosenTable(w io.Writer, origin describe.Origin, list []pipelines.Choice, output string) (err error) {
	switch output {
	case "json":
		return json.NewEncoder(w).Encode(struct {
			describe.Origin
			Launches any `json:"launches"`
		}{origin, list})
	case "csv":
		t := describe.NewCSV(pipelines.ChosenColumns...)
		for _, row := range pipelines.ChosenRows(list) {
			t.AppendRow(origin.Row(row...))
		}
		_, err = fmt.Fprintln(w, t.RenderCSV())
		return err
	}
	t := describe.NewTable(3, pipelines.ChosenColumns...)
	for _, row := range pipelines.ChosenRows(list) {
		t.Add(row)
	}
	about := origin.Device + ", " + origin.Driver + "\n" + origin.Program()
	_, err = fmt.Fprintf(w, "%s\n\n%s\n", describe.Wrap(about, "  "), t)
	return err
}

// pipelineCSV has a row for each kernel, empty where the driver does not tell.
func pipelineCSV(o describe.Origin, rows []pipelines.Row) table.Writer {
	t := describe.NewCSV("kernel", "constants", "hot", "subgroup", "registers", "scalar_registers", "shared_bytes", "spills", "occupancy",
		"code_bytes", "clocks")
	for _, r := range rows {
		row := o.Row(r.Kernel, strings.Trim(fmt.Sprint(r.Constants), "[]"), r.Hot, r.Subgroup)
		for _, v := range []float64{r.Registers, r.Scalar, r.Shared, r.Spills, r.Occupancy, r.Code, r.Clocks} {
			text := ""
			if v >= 0 {
				text = strconv.FormatFloat(v, 'f', -1, 64)
			}
			row = append(row, text)
		}
		t.AppendRow(row)
	}
	return t
}

func pipelineTable(w io.Writer, o describe.Origin, rows []pipelines.Row, all bool) error {
	t := describe.NewTable(1, "kernel", "hot", "subgroup", "registers", "scalar", "shared", "spills", "occupancy", "code")
	num := func(v float64) string {
		if v < 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f", v)
	}
	shown := 0
	for _, r := range rows {
		if !all && !r.Hot {
			continue
		}
		shown++
		hot := ""
		if r.Hot {
			hot = "yes"
		}
		subgroup := "-"
		if r.Subgroup > 0 {
			subgroup = fmt.Sprint(r.Subgroup)
		}
		t.Add([]any{r.String(), hot, subgroup, num(r.Registers), num(r.Scalar), num(r.Shared),
			num(r.Spills), num(r.Occupancy), num(r.Code)})
	}
	about := fmt.Sprintf("%s, %s\n%s\n%d kernels compiled, %d shown; registers of an invocation, scalar registers of a subgroup, "+
		"shared memory in bytes of a workgroup, occupancy in subgroups of a SIMD unit",
		o.Device, o.Driver, o.Program(), len(rows), shown)
	_, err := fmt.Fprintf(w, "%s\n\n%s\n", describe.Wrap(about, "  "), t)
	for _, r := range pipelines.Wrong(rows) {
		if err == nil {
			_, err = fmt.Fprintf(w, "SPILLS: %s: %.0f\n", r, r.Spills)
		}
	}
	for _, r := range pipelines.Few(rows) {
		if err == nil {
			_, err = fmt.Fprintf(w, "not judged: %s: %.0f bytes of local memory\n", r, r.Spills)
		}
	}
	return err
}
