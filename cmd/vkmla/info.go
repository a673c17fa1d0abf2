package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/verify"
	"github.com/vkmla/vkmla/internal/timed"
	"github.com/vkmla/vkmla/internal/tuning"
	"github.com/vkmla/vkmla/vk"
)

// infoLong precedes the flags in --help.
const infoLong = `Info lists every Vulkan device: its driver, the limits and features that matter here, its
tuning profile, and for every operation the variant that would run and what the others
lack.

A tuning profile holds the numbers that kernels are chosen and divided by. A device gets
one by what it says of itself; --profile names another.

Variants:

  base           needs no optional feature; slow where others multiply matrices
  da             the same, with pools reached by device address
  dot            dot products of halves where there are no matrices
  cm, cmb        multiply cooperative matrices of f16, of bf16
  twopass-...    dequantise to a workspace first, then attend; prompts do so where it pays`

func infoCommand() *cobra.Command {
	var output, device, profile string
	var asJSON, summary bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "List the devices and what would run on them",
		Long:  infoLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				output = "json"
			}
			if summary {
				output = "summary"
			}
			return runInfo(cmd.OutOrStdout(), output, device, profile)
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&output, "output", "o", "table", "table, json, or csv: a row for each operation of each device")
	fl.StringVar(&device, "device", "", "only this device: index, part of its name, or UUID")
	fl.StringVar(&profile, "profile", "", "tuning profile instead of the devices' own: "+strings.Join(tuning.Names(), ", "))
	fl.BoolVar(&summary, "summary", false, "a line for each device")
	cmd.MarkFlagsMutuallyExclusive("summary", "output")
	fl.BoolVar(&asJSON, "json", false, "the same as -o json")
	if err := fl.MarkHidden("json"); err != nil {
		panic(err) // a name that is not a flag
	}
	return cmd
}

func runInfo(w io.Writer, output, device, profile string) error {
	if !slices.Contains([]string{"table", "json", "csv", "summary"}, output) {
		return &vk.ArgumentError{Op: "info", Arg: "output", Got: strconv.Quote(output), Want: "table, json or csv"}
	}
	if err := checkProfile(profile); err != nil {
		return err
	}
	in, err := newInstance()
	if err != nil {
		return err
	}
	defer in.Close()
	adapters := in.Adapters()
	if device != "" {
		a, err := in.Pick(device)
		if err != nil {
			return err
		}
		adapters = []*vk.Adapter{a}
	}
	devices, origins := []describe.Device{}, []describe.Origin{}
	for _, a := range adapters {
		devices, origins = append(devices, described(a, profile)), append(origins, describe.OriginOf(a, profile))
	}
	switch output {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"program": describe.Running(), "devices": devices})
	case "csv":
		_, err := fmt.Fprintln(w, infoCSV(origins, devices).RenderCSV())
		return err
	}
	var text bytes.Buffer
	for _, d := range devices {
		if output == "summary" {
			fmt.Fprintln(&text, summaryOf(d))
		} else {
			printDevice(&text, d)
		}
	}
	if _, err := w.Write(text.Bytes()); err != nil {
		return fmt.Errorf("info: output: %w", err)
	}
	return nil
}

// infoCSV has a row for each operation of each device.
func infoCSV(origins []describe.Origin, devices []describe.Device) table.Writer {
	t := describe.NewCSV("index", "type", "vulkan", "memory_bytes", "problem", "op", "runs", "can", "missing")
	for i, d := range devices {
		for _, name := range slices.Sorted(maps.Keys(d.Ops)) {
			op, missing := d.Ops[name], []string{}
			for _, v := range slices.Sorted(maps.Keys(op.Missing)) {
				missing = append(missing, v+": "+strings.Join(op.Missing[v], " "))
			}
			t.AppendRow(origins[i].Row(d.Index, d.Type, d.APIVersion, d.Limits.HeapBytes, d.Problem, name, op.Runs,
				strings.Join(op.Can, " "), strings.Join(missing, "; ")))
		}
	}
	return t
}

// summaryOf returns a device in a line: what it is, what is free of its largest memory, its
// profile, and which variants of the operations that take most of a step would run.
func summaryOf(d describe.Device) string {
	text := fmt.Sprintf("%d: %s (%s), %s %s, %s", d.Index, d.Name, d.Type, d.Driver, d.DriverInfo, describe.Bytes(d.Limits.HeapBytes))
	for _, h := range d.Limits.Heaps {
		if h.DeviceLocal && h.Bytes == d.Limits.HeapBytes && h.Budget != nil {
			text += fmt.Sprintf(" (%s free)", describe.Bytes(*h.Budget-min(*h.Budget, *h.Usage)))
			break
		}
	}
	if !d.Usable {
		return text + ", cannot be used: " + d.Problem
	}
	runs := func(op string) string { return cmp.Or(d.Ops[op].Runs, "nothing") }
	return fmt.Sprintf("%s, profile %s, attention %s, scores %s, products %s", text, d.Profile.Name,
		runs("flashmla_sparse_decode"), runs("indexer_logits_fp8"), runs("linear"))
}

// infoCases are what info makes operations for.
var infoCases = sync.OnceValue(func() map[string][]verify.Case { return verify.RandomCases(0) })

// described says what a device is, with the builds that were timed on it.
func described(a *vk.Adapter, profile string) describe.Device {
	b, ok := timed.Load(pipelineCacheDir(), a)
	if !ok {
		return describe.Of(a, profile, nil, infoCases())
	}
	return describe.Of(a, profile, &b, infoCases())
}

func printDevice(w io.Writer, d describe.Device) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-20s %s\n", name, describe.Indented(fmt.Sprintf(format, args...), 23))
	}
	fmt.Fprintf(w, "%d: %s (%s)\n", d.Index, d.Name, d.Type)
	line("uuid", "%s", d.UUID)
	line("PCI id", "%s", d.PCI)
	line("driver", "%s %s (version %#x)", d.Driver, d.DriverInfo, d.DriverVersion)
	line("Vulkan", "%s", d.APIVersion)
	if !d.Usable {
		line("cannot be used", "%s", d.Problem)
	}
	measured := "measured"
	if !d.Profile.Measured {
		measured = "never measured"
	}
	line("tuning profile", "%s, %s (%s)", d.Profile.Name, measured, d.Profile.Why)
	for _, text := range buildsText(d) {
		line("builds", "%s", text)
	}
	if d.Watchdog.Seconds > 0 {
		line("watchdog", "assumed after %g s (%s)", d.Watchdog.Seconds, d.Watchdog.Of)
	} else {
		line("watchdog", "none (%s)", d.Watchdog.Of)
	}
	if d.MayWait {
		line("workgroups", "may wait for others of their launch")
	} else {
		line("workgroups", "never wait for each other with this driver; more launches")
	}
	l := d.Limits
	line("host access", "%s", d.HostAccess)
	line("device memory", "%s", describe.Bytes(l.HeapBytes))
	for i, h := range l.Heaps {
		line(fmt.Sprintf("memory %d", i), "%s", heapText(h))
	}
	largest := "size not told"
	if l.MaxBuffer > 0 {
		largest = "up to " + describe.Bytes(l.MaxBuffer)
	}
	line("storage buffer", "up to %s, %d in a set; allocation up to %s, buffer %s",
		describe.Bytes(l.MaxStorageBufferRange), l.MaxStorageBuffers, describe.Bytes(l.MaxAllocation), largest)
	line("push constants", "%d bytes", l.MaxPushConstants)
	line("workgroup", "%d invocations, %s of shared memory, up to %v of them",
		l.MaxWorkgroupInvocations, describe.Bytes(uint64(l.SharedMemory)), l.MaxWorkgroupCount)
	line("subgroup", "%d (%d to %d)", l.SubgroupSize, l.MinSubgroupSize, l.MaxSubgroupSize)
	line("compute units", "%d (%s)", l.ComputeUnits, l.ComputeUnitsBy)
	line("timestamps", "%g ns", l.TimestampPeriod)
	var have, lack []string
	for _, f := range slices.Sorted(maps.Keys(d.Features)) {
		if d.Features[f] {
			have = append(have, f)
		} else {
			lack = append(lack, f)
		}
	}
	line("features", "%s", orNone(have))
	line("without", "%s", orNone(lack))
	for i, s := range d.CoopMat {
		name := ""
		if i == 0 {
			name = "cooperative matrix"
		}
		line(name, "%s", s)
	}
	fmt.Fprintln(w, "  operations")
	for _, name := range slices.Sorted(maps.Keys(d.Ops)) {
		printOp(w, name, d.Ops[name])
	}
	fmt.Fprintln(w)
}

// buildsText says which builds of kernels were chosen by timing them.
func buildsText(d describe.Device) (lines []string) {
	if d.Profile.Measured {
		return nil
	}
	if d.Builds == nil {
		return []string{"not timed yet; bench and run do it once"}
	}
	for _, family := range slices.Sorted(maps.Keys(d.Builds.Timed)) {
		t := d.Builds.Timed[family]
		var parts []string
		for _, name := range t.Best() {
			parts = append(parts, fmt.Sprintf("%s %.4g us", name, t.Microseconds[name]))
		}
		for _, name := range slices.Sorted(maps.Keys(t.Failed)) {
			parts = append(parts, fmt.Sprintf("never %s: %s", name, t.Failed[name]))
		}
		lines = append(lines, fmt.Sprintf("%s: %s; timed %s", family, strings.Join(parts, ", "), d.Builds.Date))
	}
	return lines
}

func heapText(h describe.Heap) string {
	text := "the host's, "
	if h.DeviceLocal {
		text = "the device's, "
	}
	text += describe.Bytes(h.Bytes)
	if h.Budget == nil {
		return text + "; the driver does not tell how much is free"
	}
	return fmt.Sprintf("%s, budget %s, in use %s", text, describe.Bytes(*h.Budget), describe.Bytes(*h.Usage))
}

func printOp(w io.Writer, name string, o describe.Variants) {
	runs := cmp.Or(o.Runs, "nothing")
	if runs == "base" && o.HasMatrices() {
		runs += " (slow)"
	}
	if len(o.Can) > 1 {
		runs += "; also " + strings.Join(o.Can[1:], ", ")
	}
	indent := min(43, describe.Width/2)
	fmt.Fprintf(w, "    %-*s runs %s\n", indent-5, name, describe.Indented(runs, max(indent, 5+len(name))+5))
	lacks := func(not string, missing map[string][]string) {
		for _, v := range slices.Sorted(maps.Keys(missing)) {
			text := fmt.Sprintf("%s %s: device lacks %s", not, v, strings.Join(missing[v], ", "))
			fmt.Fprintf(w, "%*s%s\n", indent, "", describe.Indented(text, indent+2))
		}
	}
	lacks("not", o.Missing)
	lacks("not every size of", o.Partly)
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, " ")
}
