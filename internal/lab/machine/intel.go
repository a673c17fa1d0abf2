package machine

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	intelLabel = regexp.MustCompile(`^L(\d+):`)
	intelCode  = regexp.MustCompile(`^(?:\([^)]*\))?\s+([a-z][a-z0-9_]*)[\w.]* \(\d+\)(.*)`)
	intelName  = regexp.MustCompile(`(jip:|uip:|^\s*)L(\d+)`)
)

// structure is a listing of ANV's. Places are counts of instructions before.
type structure struct {
	labels map[string]int
	code   []statement
	faults []string
}

type statement struct {
	name     string
	jip, uip string // labels; while and endif have one
	last     bool   // ends the thread
}

// Intel returns what is wrong in ANV's listing of a kernel, nothing if all is well. ANV makes its
// labels from encoded offsets and puts each before the instruction there:
//
//   - a label that is named is there, once, ahead of what names it but for a loop's end;
//   - if, else and endif are nested, and loops with them; break leads to the end of the loop
//     around it;
//   - the thread ends in the last instruction.
func Intel(text string) []string {
	s := structure{labels: map[string]int{}}
	s.read(text)
	if len(s.code) == 0 {
		return []string{"no instructions"}
	}
	s.names()
	s.nest()
	if !s.code[len(s.code)-1].last {
		s.fault("the last instruction, %s, does not end the thread", s.code[len(s.code)-1].name)
	}
	return s.faults
}

func (s *structure) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

func (s *structure) read(text string) {
	for line := range strings.Lines(text) {
		if m := intelLabel.FindStringSubmatch(line); m != nil {
			if _, ok := s.labels[m[1]]; ok {
				s.fault("L%s is there twice", m[1])
			}
			s.labels[m[1]] = len(s.code)
		} else if m := intelCode.FindStringSubmatch(line); m != nil {
			x := statement{name: m[1], last: strings.Contains(m[2], "EOT")}
			switch x.name {
			case "if", "else", "endif", "while", "break", "cont", "halt":
				for _, n := range intelName.FindAllStringSubmatch(m[2], -1) {
					if n[1] == "uip:" {
						x.uip = n[2]
					} else {
						x.jip = n[2]
					}
				}
			case "jmpi", "goto", "join", "brd", "brc", "call", "calla", "ret":
				s.fault("instruction %d: where %s goes is not known", len(s.code), x.name)
			}
			s.code = append(s.code, x)
		}
	}
}

// names holds that labels are there, and on the right side.
func (s *structure) names() {
	for i, x := range s.code {
		for _, name := range []string{x.jip, x.uip} {
			if name == "" {
				continue
			}
			at, ok := s.labels[name]
			switch back := x.name == "while"; {
			case !ok:
				s.fault("instruction %d: %s to L%s, which is missing", i, x.name, name)
			case at >= len(s.code):
				s.fault("instruction %d: %s to L%s, the end of the code", i, x.name, name)
			case back != (at <= i):
				s.fault("instruction %d: %s to L%s, instruction %d, the wrong way", i, x.name, name, at)
			}
		}
	}
}

// nest holds that what is opened is closed, and where breaks lead. A loop is open from the label
// that its while names.
func (s *structure) nest() {
	loops := map[int]int{} // how many begin at an instruction
	for _, x := range s.code {
		if x.name == "while" {
			loops[s.labels[x.jip]]++
		}
	}
	var open []string
	closes := func(i int, name string, want ...string) {
		top := ""
		if len(open) > 0 {
			top, open = open[len(open)-1], open[:len(open)-1]
		}
		for _, w := range want {
			if top == w {
				return
			}
		}
		s.fault("instruction %d: %s closes %q", i, name, top)
	}
	for i, x := range s.code {
		for range loops[i] {
			open = append(open, "loop")
		}
		switch x.name {
		case "if":
			open = append(open, "if")
		case "else":
			closes(i, x.name, "if")
			open = append(open, "else")
		case "endif":
			closes(i, x.name, "if", "else")
		case "while":
			closes(i, x.name, "loop")
		case "break":
			at, ok := s.labels[x.uip]
			if ok && at < len(s.code) && (s.code[at].name != "while" || s.labels[s.code[at].jip] > i) {
				s.fault("instruction %d: break to L%s, which ends no loop around it", i, x.uip)
			}
		}
	}
	if len(open) > 0 {
		s.fault("%d of if, else and loops are not closed", len(open))
	}
}
