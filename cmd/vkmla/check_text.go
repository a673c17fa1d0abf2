package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/check"
	"github.com/vkmla/vkmla/internal/lab/describe"
)

// checkProgress shows a bar on a terminal, and elsewhere a line for each check that has ended.
type checkProgress struct {
	w     io.Writer
	line  *progress
	total int
	done  int
}

func newCheckProgress(w io.Writer, total int) *checkProgress {
	return &checkProgress{w: w, line: newProgress(w), total: total}
}

// barWidth counts the characters of a full bar.
const barWidth = 24

func (p *checkProgress) doing(done int, c check.Check, what string) {
	full := barWidth * done / max(p.total, 1)
	bar := strings.Repeat("#", full) + strings.Repeat(".", barWidth-full)
	text := fmt.Sprintf("[%s] %d/%d%s %s %s", bar, done+1, p.total, p.line.left(done, p.total), c.Group, c.Name)
	if what != "" {
		text += ": " + what
	}
	p.line.show("%s", text)
}

func (p *checkProgress) result(r check.Result) {
	p.done++
	if isTerminal(p.w) && !p.line.plain && !r.Status.Bad() && r.Status != check.TimedOut {
		return // the bar says it
	}
	p.line.clear()
	fmt.Fprintf(p.w, "%d/%d %s %s: %s, %.1f s\n", p.done, p.total, r.Group, r.Name, r.Status, r.Seconds)
}

// checkVerdict is the last object of the output; it has no field "group".
type checkVerdict struct {
	OK bool `json:"ok"`
	describe.Origin
	Statuses map[check.Status]int `json:"statuses"`
	Seed     uint64               `json:"seed"`
	Seconds  float64              `json:"seconds"`
	JSON     string               `json:"report_json"`
	HTML     string               `json:"report_html"`
}

func newCheckVerdict(r *check.Report, files *check.Files) checkVerdict {
	v := checkVerdict{OK: !r.Bad() && !r.Late(), Origin: r.Origin(), Statuses: map[check.Status]int{}, Seed: r.Seed, Seconds: r.Seconds,
		JSON: files.JSON, HTML: files.HTML}
	for _, s := range check.Statuses {
		v.Statuses[s] = r.Count("", s)
	}
	return v
}

// printCheck prints what a report says in short.
func printCheck(w io.Writer, r *check.Report, files *check.Files) error {
	var b strings.Builder
	d := r.Device
	o := r.Origin()
	fmt.Fprintf(&b, "%s (%s), %s, Vulkan %s\n%s\n", o.Device, o.Type, o.Driver, o.API, o.Program())
	fmt.Fprintf(&b, "tuning profile %s: %s\n", d.Profile.Name, d.Profile.Why)
	if l := r.Limits(); l != nil {
		fmt.Fprintf(&b, "measured limits: copy %.4g GB/s (bytes read plus written), %s %.4g TFLOP/s\n",
			l.CopyGBs, l.MatrixKind, l.MatrixTFLOPs)
	}
	b.WriteString("\n")
	for _, g := range check.Groups {
		if counts := r.Counts(g.Name); counts != "" {
			fmt.Fprintf(&b, "  %-12s%s\n", g.Name, counts)
		}
	}
	printTimes(&b, r)
	for _, part := range []struct {
		title string
		has   func(check.Status) bool
	}{{"wrong", check.Status.Bad}, {"not ended in time", func(s check.Status) bool { return s == check.TimedOut }}} {
		title := "\n" + part.title + "\n"
		for _, x := range r.Results {
			if part.has(x.Status) {
				b.WriteString(title)
				printBad(&b, x)
				title = ""
			}
		}
	}
	if reasons := r.Reasons(); len(reasons) > 0 {
		b.WriteString("\nnot run, or in part\n")
		for _, x := range reasons {
			fmt.Fprintf(&b, "  %s:\n    %s\n", x.Why, names(x.Names))
		}
	}
	fmt.Fprintf(&b, "\n%s, in %.0f s; --seed %d repeats it\n", r.Verdict(), r.Seconds, r.Seed)
	fmt.Fprintf(&b, "report: %s\n        %s\n", files.HTML, files.JSON)
	_, err := io.WriteString(w, describe.Wrap(b.String(), "    "))
	return err
}

func printBad(b *strings.Builder, x check.Result) {
	fmt.Fprintf(b, "  %s %s: %s\n    %s\n", x.Group, x.Name, x.Status, x.Why)
	if x.About != "" {
		fmt.Fprintf(b, "    (%s)\n", x.About)
	}
}

// printTimes prints the layers that were timed.
func printTimes(b *strings.Builder, r *check.Report) {
	first := true
	for _, x := range r.Results {
		for _, t := range x.Times {
			if t.Status != "ok" {
				continue
			}
			if first {
				fmt.Fprintf(b, "\n  %-44s %10s %12s\n", "layer", "us", "of the limit")
				first = false
			}
			fmt.Fprintf(b, "  %-44s %10.1f %11.1f%%\n", x.Name, t.Time.Median, 100*t.Share)
		}
	}
}

// names are some names, and how many more.
func names(list []string) string {
	const most = 4
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
