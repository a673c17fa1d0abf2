package vary_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/vkmla/vkmla/internal/lab/vary"
)

type inner struct{ Size, Unused int }

type section struct {
	Flag, Off bool
	Rate      float64
	List      []inner
	Of        struct{ More []int }
}

func TestDistinct(t *testing.T) {
	sections := map[string]any{"a": section{Rate: 1}, "b": section{Rate: 2}, "c": section{Rate: 1}}
	var got []string
	vary.Distinct([]string{"a", "b", "c"}, func(name string) any { return sections[name] }, func(name string) { got = append(got, name) })
	assert.Equal(t, []string{"a", "b"}, got)
}

// Numbers that a plan does not read are found, wherever they are, and the section stays as it was.
func TestIdle(t *testing.T) {
	s := section{Rate: 2, List: []inner{{0, 3}, {1, 5}}}
	s.Of.More = []int{4}
	plan := func(s *section) string { return fmt.Sprint(s.Flag, s.Rate, s.List[0].Size) }
	other := func(s *section) string { return fmt.Sprint(s.List[1].Size, s.Of.More) }
	assert.Equal(t, []string{".Off", ".List[0].Unused", ".List[1].Unused"}, vary.Idle(s, plan, other))
	assert.Equal(t, []inner{{0, 3}, {1, 5}}, s.List)
	assert.Equal(t, []int{4}, s.Of.More)
}
