package pipelines

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/vkmla/vkmla/vk"
)

// slack is by how much the compiler's clocks may exceed those recorded: other registers move them.
const slack = 1.02

// GateTable is what a compiler makes of the kernels of choices, a line each: kernel, spilled
// registers, occupancy and the compiler's clocks. With listings, on the GPUs of the model, those of
// its tasks also have the clocks of a compute unit, conflicts of banks included.
func GateTable(a *vk.Adapter, list []Choice) string {
	var s strings.Builder
	seen := map[string]bool{}
	for _, c := range list {
		for i := range c.Kernels {
			r := &c.Kernels[i].Row
			if name := r.String(); !seen[name] {
				seen[name] = true
				fmt.Fprintf(&s, "%s: spills %.0f, occupancy %.0f, clocks %.0f", strings.ReplaceAll(name, ", ", ","), r.Spills, r.Occupancy, r.Clocks)
				if e, ok := estimated(a, &c, &c.Kernels[i]); ok {
					fmt.Fprintf(&s, ", modelled %.0f", e.all.Most())
				}
				s.WriteByte('\n')
			}
		}
	}
	return s.String()
}

// gateLine is a line of a GateTable.
type gateLine struct{ spills, occupancy, clocks, modelled float64 }

func readGate(text string) (map[string]gateLine, error) {
	lines := map[string]gateLine{}
	for in := bufio.NewScanner(strings.NewReader(text)); in.Scan(); {
		name, rest, _ := strings.Cut(in.Text(), ": ")
		var l gateLine
		rest, modelled, ok := strings.Cut(rest, ", modelled ")
		_, err := fmt.Sscanf(rest, "spills %f, occupancy %f, clocks %f", &l.spills, &l.occupancy, &l.clocks)
		if err == nil && ok {
			_, err = fmt.Sscanf(modelled, "%f", &l.modelled)
		}
		if err != nil {
			return nil, fmt.Errorf("pipelines: line %q: %w", in.Text(), err)
		}
		lines[name] = l
	}
	return lines, nil
}

// Worse lists what is worse in a GateTable than in a recorded one: a kernel that spills more, one
// with lower occupancy, more clocks or more by the model, and one that is not recorded.
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
		case w.modelled > 0 && (n.modelled == 0 || n.modelled > w.modelled*slack):
			list = append(list, fmt.Sprintf("%s: %.0f clocks by the model, recorded %.0f", name, n.modelled, w.modelled))
		}
	}
	return list, nil
}
