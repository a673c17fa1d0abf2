package pipeline_test

import (
	"slices"
	"testing"
	"time"

	"github.com/vkmla/vkmla/pipeline"
)

// budget runs sessions with budgets that nothing, some operations or everything exceeds:
// submissions change, results do not.
func (x *sessions) budget(t *testing.T) {
	for _, c := range []struct {
		name   string
		budget time.Duration
	}{{"none", -1}, {"default", 0}, {"small", 2 * time.Millisecond}, {"tiny", 1}} {
		o := sessionOptions()
		o.SubmitBudget = c.budget
		e := x.engine(t, o)
		s := must[*pipeline.Session](t)(e.Open())
		x.rest(t, c.name, s)
		parts, each := e.Submissions(1)
		t.Logf("%s: %d submissions", c.name, parts)
		// A step that takes unusually long, as it may on a busy CPU, is measured anew, so
		// that with a small budget each operation may be a submission at any time.
		if each && c.name != "small" || c.name == "none" && parts != 1 || c.name == "tiny" && parts < 40 {
			t.Errorf("%s: %d submissions, each %v", c.name, parts, each)
		}
	}
}

func TestSubmissions(t *testing.T) {
	const budget = 100 * time.Nanosecond
	took := []float64{10, 30, 20, 70, 5, 60, 1}
	before, size := pipeline.Cuts(took, budget) // in parts of half of it
	if !slices.Equal(before, []int{2, 3, 4, 5, 6}) || !slices.Equal(size, []int{2, 1, 1, 1, 1, 1}) {
		t.Errorf("before %v, so many each %v", before, size)
	}
	for _, c := range []struct {
		name       string
		budget     time.Duration
		size       []int
		took       []float64
		work, then float64
		want       bool
	}{
		{"no budget", -1, []int{2, 1}, []float64{1e9, 1e9}, 1, 9, true},
		{"not run yet", budget, []int{2, 1}, nil, 0, 9, true},
		{"measured, to be packed", budget, nil, []float64{1, 1, 1}, 1, 1, false},
		{"being measured", budget, nil, nil, 0, 1, true},
		{"short", budget, []int{2, 1}, []float64{50, 20}, 100, 200, true},
		{"too much more to do", budget, []int{2, 1}, []float64{50, 20}, 100, 201, false},
		{"less to do", budget, []int{2, 1}, []float64{99, 20}, 100, 1, true},
		{"not to be divided", budget, []int{2, 1}, []float64{1, 1000}, 100, 100, true},
		{"too long", budget, []int{2, 1}, []float64{101, 1}, 100, 100, false},
	} {
		if got := pipeline.Suits(c.size, c.took, c.work, c.budget, c.then); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
