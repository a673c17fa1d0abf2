package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vkmla/vkmla/internal/files"
	"github.com/vkmla/vkmla/internal/lab/bench"
	"github.com/vkmla/vkmla/internal/lab/describe"
)

// Report is all that a run of checks found. It names no user, host or file of theirs but what
// an error says.
type Report struct {
	Form    int              `json:"form"` // of this object: 1
	Program describe.Program `json:"program"`

	Begun   time.Time `json:"begun"`
	Seconds float64   `json:"seconds"`
	Ended   bool      `json:"ended"` // false in what is written while checks run
	Running string    `json:"running,omitempty"`
	Seed    uint64    `json:"seed"`
	Quick   bool      `json:"quick"`
	Budget  string    `json:"budget"`

	Device  *describe.Device `json:"device"`            // nil if none could be opened
	Devices int              `json:"devices"`           // that drivers list
	Problem string           `json:"problem,omitempty"` // why it could not be opened
	Output  string           `json:"output,omitempty"`  // the end of what the driver wrote then

	Results []Result `json:"results"`
}

// Form is the form of reports.
const Form = 1

// Count returns how many checks, of a group or of all for "", have ended so.
func (r *Report) Count(group string, s Status) (n int) {
	for _, x := range r.Results {
		if x.Status == s && (group == "" || x.Group == group) {
			n++
		}
	}
	return n
}

// Origin returns where the results come from. There has to be a device.
func (r *Report) Origin() describe.Origin { return r.Device.Origin(r.Program, r.Begun) }

// Bad reports whether any check went wrong.
func (r *Report) Bad() bool {
	return slices.ContainsFunc(r.Results, func(x Result) bool { return x.Status.Bad() })
}

// Late reports whether any check did not end in time.
func (r *Report) Late() bool { return r.Count("", TimedOut) > 0 }

// Limits returns those that were measured, or nil.
func (r *Report) Limits() *bench.Limits {
	for _, x := range r.Results {
		if x.Limits != nil {
			return x.Limits
		}
	}
	return nil
}

// Times returns the layers that were right and timed.
func (r *Report) Times() (list []bench.LayerRow) {
	for _, x := range r.Results {
		for _, t := range x.Times {
			if t.Status == "ok" {
				list = append(list, t)
			}
		}
	}
	return list
}

// Files are where a report is written. They are made sure of before anything runs.
type Files struct {
	JSON, HTML string
}

// NewFiles makes sure that PREFIX.json and PREFIX.html can be written; their folder is not made.
func NewFiles(prefix string) (*Files, error) {
	f := &Files{JSON: prefix + ".json", HTML: prefix + ".html"}
	for _, path := range []string{f.JSON, f.HTML} {
		if err := files.Replaceable(path); err != nil {
			return nil, fmt.Errorf("check: report: %w", err)
		}
	}
	return f, nil
}

// Write writes the report. Each file is there as a whole or as it was before.
func (f *Files) Write(r *Report) error {
	if err := f.WriteJSON(r); err != nil {
		return err
	}
	page, err := r.HTML()
	if err != nil {
		return err
	}
	return replace(f.HTML, page)
}

// WriteJSON writes the report without its page.
func (f *Files) WriteJSON(r *Report) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("check: report: %w", err)
	}
	return replace(f.JSON, append(data, '\n'))
}

func replace(path string, data []byte) error {
	err := files.Replace(path, 0o644, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return fmt.Errorf("check: report: %w", err)
	}
	return nil
}

var unnamed = regexp.MustCompile(`[^a-z0-9]+`)

// DefaultPrefix names a report after the device and the time, in the current folder.
func DefaultPrefix(device string, at time.Time) string {
	const most = 40
	name := strings.Trim(unnamed.ReplaceAllString(strings.ToLower(device), "-"), "-")
	name = strings.TrimRight(name[:min(len(name), most)], "-")
	return "vkmla-check-" + cmp.Or(name, "no-device") + "-" + at.UTC().Format("20060102T150405Z")
}
