package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/vkmla/vkmla/internal/lab/describe"
	"github.com/vkmla/vkmla/internal/lab/verify"
)

// rowFormats are the formats of compared rows.
var rowFormats = []string{"table", "csv", "json"}

func checkRowFormat(op, output string) error {
	if !slices.Contains(rowFormats, output) {
		return fmt.Errorf("%s: --output is %q, want %s", op, output, strings.Join(rowFormats, ", "))
	}
	return nil
}

// verdict is the last object of the output; it has no field "op".
type verdict struct {
	OK bool `json:"ok"`
	describe.Origin
	verify.Summary
	Seed *uint64 `json:"seed,omitempty"` // absent with recorded cases
}

// seedOf returns the seed of random cases, nil with recorded ones.
func seedOf(o verify.Options) *uint64 {
	if len(o.Vectors) > 0 {
		return nil
	}
	return &o.Seed
}

// rowWriter prints rows as they come, and the verdict.
type rowWriter interface {
	begin(origin describe.Origin, seed *uint64)
	row(verify.Row)
	end(verdict)
}

// newRows prints as output says, one of rowFormats.
func newRows(w io.Writer, output string) rowWriter {
	switch output {
	case "json":
		return &jsonRows{enc: json.NewEncoder(w)}
	case "csv":
		return &csvRows{w: csv.NewWriter(w)}
	}
	return &tableRows{w: w}
}

type jsonRows struct {
	enc    *json.Encoder
	origin describe.Origin
}

func (j *jsonRows) begin(origin describe.Origin, _ *uint64) { j.origin = origin }
func (j *jsonRows) end(v verdict)                           { j.enc.Encode(v) }
func (j *jsonRows) row(r verify.Row) {
	j.enc.Encode(struct {
		verify.Row
		describe.Origin
	}{r, j.origin})
}

// csvRows has the seed in each row, and no verdict.
type csvRows struct {
	w      *csv.Writer
	origin []string
	seed   string
}

func (c *csvRows) begin(origin describe.Origin, seed *uint64) {
	if c.origin = origin.Values(); seed != nil {
		c.seed = fmt.Sprint(*seed)
	}
	c.w.Write(append(slices.Clone(describe.OriginColumns), "op", "case", "variant", "class", "status", "error", "bound", "source",
		"seed", "not_compared", "detail"))
}

func (c *csvRows) row(r verify.Row) {
	number := func(x *float64) string {
		if x == nil {
			return ""
		}
		return strconv.FormatFloat(*x, 'g', -1, 64)
	}
	c.w.Write(append(slices.Clone(c.origin), r.Op, r.Case, r.Variant, r.Class, string(r.Status), number(r.Error), number(r.Bound),
		r.Source, c.seed, strings.Join(r.Unjudged, " "), r.Detail))
	c.w.Flush()
}

func (c *csvRows) end(verdict) { c.w.Flush() }

// tableRows has a table for each operation, once all its rows are there: the columns' widths depend
// on them.
type tableRows struct {
	w  io.Writer
	op string
	t  *describe.Table
}

func (t *tableRows) begin(describe.Origin, *uint64) {}

func (t *tableRows) row(r verify.Row) {
	detail := r.Detail
	if r.Status == verify.Pass {
		detail = "" // a criterion that is met needs no words
		if len(r.Unjudged) > 0 {
			detail = "not compared: " + strings.Join(r.Unjudged, ", ")
		}
	}
	if t.t == nil || t.op != r.Op {
		t.flush()
		t.op, t.t = r.Op, describe.NewTable(2, "case", "variant", "class", "status", "error", "bound", "detail")
	}
	t.t.Add([]any{r.Case, r.Variant, r.Class, r.Status, number(r.Error), number(r.Bound), detail})
}

func (t *tableRows) flush() {
	if t.t != nil {
		fmt.Fprintf(t.w, "%s\n\n%s\n\n", t.op, t.t)
	}
}

func (t *tableRows) end(v verdict) {
	t.flush()
	text := fmt.Sprintf("%s\n%s, %s, tuning profile %s\n%d passed, %d failed, %d skipped, %d missing\n",
		v.Program(), v.Device, v.Driver, v.Profile, v.Pass, v.Fail, v.Skip, v.Missing)
	if v.Seed != nil {
		text += fmt.Sprintf("random cases of seed %d; --seed %d repeats them\n", *v.Seed, *v.Seed)
	}
	io.WriteString(t.w, describe.Wrap(text, "  "))
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
