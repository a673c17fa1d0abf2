package pipelines

import (
	"bufio"
	"fmt"
	"strings"
)

// slack is by how much the compiler's clocks may exceed those recorded: other registers move them.
const slack = 1.02

// GateTable lists what a compiler makes of the kernels of choices, a line each: kernel, spilled
// registers, occupancy and the compiler's clocks.
func GateTable(list []Choice) string {
	var s strings.Builder
	seen := map[string]bool{}
	for _, c := range list {
		for i := range c.Kernels {
			r := &c.Kernels[i].Row
			if name := r.String(); !seen[name] {
				seen[name] = true
				fmt.Fprintf(&s, "%s: spills %.0f, occupancy %.0f, clocks %.0f\n", strings.ReplaceAll(name, ", ", ","), r.Spills, r.Occupancy, r.Clocks)
			}
		}
	}
	return s.String()
}

// gateLine is a line of a GateTable.
type gateLine struct{ spills, occupancy, clocks float64 }

func readGate(text string) (map[string]gateLine, error) {
	lines := map[string]gateLine{}
	for in := bufio.NewScanner(strings.NewReader(text)); in.Scan(); {
		name, rest, _ := strings.Cut(in.Text(), ": ")
		var l gateLine
		if _, err := fmt.Sscanf(rest, "spills %f, occupancy %f, clocks %f\n", &l.spills, &l.occupancy, &l.clocks); err != nil {
			return nil, fmt.Errorf("pipelines: line %q: %w", in.Text(), err)
		}
		lines[name] = l
	}
	return lines, nil
}

// Worse lists what is worse in a GateTable than in a recorded one: a kernel that spills more, one
// with lower occupancy or more clocks, and one that is not recorded.
//
// Errors: a line that is none.
func Worse(recorded, now string) (list []string, err error) {
	was, err1 := readGate(recorded)
	is, err2 := readGate(now)
	if err1 != nil {
		return nil, err1
	} else if err2 != nil {
		return nil, err2
	}
	for name, n := range is {
		w, ok := was[name]
		switch {
		case n.spills > w.spills:
			list = append(list, fmt.Sprintf("%s spills %.0f registers, recorded %.0f", name, n.spills, w.spills))
		case !ok:
			list = append(list, name+" is not recorded")
		case n.occupancy < w.occupancy:
			list = append(list, fmt.Sprintf("%s: occupancy %.0f, recorded %.0f", name, n.occupancy, w.occupancy))
		case n.clocks > w.clocks*slack:
			list = append(list, fmt.Sprintf("%s: %.0f clocks, recorded %.0f", name, n.clocks, w.clocks))
		}
	}
	return list, nil
}
