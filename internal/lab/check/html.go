package check

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/picture"
)

//go:embed report.html
var pageText string

var page = picture.Page("report", pageText, template.FuncMap{
	"digits": picture.Digits, "join": strings.Join, "bytes": describe.Bytes,
	"number": func(v *float64) string {
		switch {
		case v == nil:
			return ""
		case *v > 1e300:
			return "inf"
		}
		return fmt.Sprintf("%.3g", *v)
	},
	"percent": func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) },
	"seconds": func(v float64) string { return fmt.Sprintf("%.2f", v) },
	"class":   func(s Status) string { return strings.ReplaceAll(string(s), " ", "-") },
})

// view is what the page shows of a report.
type view struct {
	*Report
	Class         string
	Groups        []groupView
	WrongOnes     []Result
	NotRun        []Reason
	Roofline      *picture.Roofline
	Bars          *picture.Bars
	With, Without []string // features
	Ops           []string // operations, sorted
}

type groupView struct {
	Name, About string
	Results     []Result
	Counts      string
}

// Reason is why checks were not run, or in part, and which.
type Reason struct {
	Why   string
	Names []string
}

// Reasons are why checks were not run, or in part, in their order.
func (r *Report) Reasons() (list []Reason) {
	for _, x := range r.Results {
		if x.Status != NotRun && (x.Status != Right || x.Why == "") {
			continue
		}
		i := slices.IndexFunc(list, func(y Reason) bool { return y.Why == x.Why })
		if i < 0 {
			i = len(list)
			list = append(list, Reason{Why: x.Why})
		}
		list[i].Names = append(list[i].Names, x.Group+" "+x.Name)
	}
	return list
}

// Counts says how the checks of a group, or of all for "", have ended.
func (r *Report) Counts(group string) string {
	var parts []string
	for _, s := range Statuses {
		if n := r.Count(group, s); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

// Verdict returns the report in a line.
func (r *Report) Verdict() string {
	switch {
	case r.Problem != "":
		return "no check could be run: " + r.Problem
	case r.Bad():
		return "SOMETHING IS WRONG: " + r.Counts("")
	case r.Late():
		return "nothing is wrong, but not all ended in time (--timeout allows more): " + r.Counts("")
	case r.Count("", Right) == 0:
		return "nothing was run"
	case len(r.Reasons()) > 0:
		return "all that was run is right: " + r.Counts("")
	}
	return "all is right: " + r.Counts("")
}

// HTML returns the report as a page that needs nothing beside itself.
func (r *Report) HTML() ([]byte, error) {
	v := view{Report: r, Class: "right", NotRun: r.Reasons()}
	if r.Bad() || r.Problem != "" {
		v.Class = "wrong"
	}
	for _, g := range Groups {
		if counts := r.Counts(g.Name); counts != "" {
			x := groupView{Name: g.Name, About: g.About, Counts: counts}
			for _, y := range r.Results {
				if y.Group == g.Name {
					x.Results = append(x.Results, y)
				}
			}
			v.Groups = append(v.Groups, x)
		}
	}
	for _, x := range r.Results {
		if x.Status.Bad() || x.Status == TimedOut {
			v.WrongOnes = append(v.WrongOnes, x)
		}
	}
	groups := bench.LayerGroups(r.Times(), stepName)
	if l := r.Limits(); l != nil {
		v.Roofline = picture.DrawRoofline(l.Picture(), groups)
	}
	v.Bars = picture.DrawBars(groups)
	if r.Device != nil {
		v.Ops = slices.Sorted(maps.Keys(r.Device.Ops))
		for _, f := range slices.Sorted(maps.Keys(r.Device.Features)) {
			if r.Device.Features[f] {
				v.With = append(v.With, f)
			} else {
				v.Without = append(v.Without, f)
			}
		}
	}
	var b bytes.Buffer
	if err := page.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("check: report: %w", err)
	}
	return b.Bytes(), nil
}
