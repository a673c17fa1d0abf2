package rdna

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
)

//go:embed testdata/opcodes.txt
var opcodes string

// unitHead is the first part of a line of opcodes: what it asks for of the wave, and the
// instruction.
var unitHead = regexp.MustCompile(`^(?:gfx(\d+) +)?(?:(64) +)?(.*?) *$`)

// testedElsewhere are instructions with tests of their own: of matrices and the flow of control.
var testedElsewhere = []string{
	"s_branch", "s_cbranch_scc0", "s_cbranch_scc1", "s_cbranch_execz", "s_cbranch_execnz", "s_cbranch_vccz", "s_cbranch_vccnz",
	"v_wmma_f32_16x16x16_f16", "v_wmma_f32_16x16x16_bf16", "v_wmma_f32_16x16x16_fp8_fp8",
}

// tested returns the instructions that unit tests execute.
func tested() map[string]bool {
	m := map[string]bool{}
	for op := range plainOps {
		m[op] = true
	}
	for _, op := range testedElsewhere {
		m[op] = true
	}
	for line := range strings.Lines(opcodes) {
		text, _, _ := strings.Cut(line, ";")
		for part := range strings.SplitSeq(unitHead.FindStringSubmatch(strings.TrimSpace(text))[3], "::") {
			name, _, _ := strings.Cut(strings.TrimSpace(part), " ")
			op, _ := encoding(name)
			m[strings.Replace(op, "v_dual_", "v_", 1)] = true
		}
	}
	return m
}

// Untested returns the instructions that waves executed and no unit test does.
func (m *Machine) Untested() (list []string) {
	known := tested()
	for op := range m.Executed() {
		for part := range strings.SplitSeq(op, " :: ") {
			if name := strings.Replace(part, "v_dual_", "v_", 1); !known[name] {
				list = append(list, name)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
