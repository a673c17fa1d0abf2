// Package spirv reads as much of a compute shader's SPIR-V module as it takes to hold it
// against the Go code beside it, and against a device's limits: push-constant members, descriptor
// bindings, specialisation constants, capabilities, the size of a workgroup and
// of its shared memory. It does not validate; that is spirv-val's work.
//
// Numbers of opcodes, decorations and the like are those of the SPIR-V
// specification, version 1.6, sections 3.3 to 3.49.
package spirv

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Module holds what Parse found.
type Module struct {
	Version      [2]int // major, minor
	EntryPoint   string
	Capabilities []Capability
	Extensions   []string // OpExtension strings
	Bindings     []Binding
	Constants    []Constant // specialisation constants, by id
	Push         []Member   // members of the push-constant block, by offset; nil without one

	names       map[uint32][]uint32 // as they are stored
	memberNames map[[2]uint32][]uint32
	decorations map[[2]uint32][]uint32 // (target, decoration) to operands
	members     map[[3]uint32][]uint32 // (struct, member, decoration) to operands
	types       map[uint32]inst
	values      map[uint32]inst // constants and specialisation constants
	variables   []inst
	counts      bool   // see CountsWorkgroups
	size        inst   // the execution mode that gives the workgroup's size
	workgroup   uint32 // the constant that does, 0 without one
}

// Binding is one storage buffer.
type Binding struct {
	Set, Binding uint32
	Name         string
	ReadOnly     bool // no member can be written
	WriteOnly    bool // no member can be read
}

// Constant is one specialisation constant.
type Constant struct {
	ID      uint32
	Name    string
	Default uint32 // its bits
}

// Member is one member of a block.
type Member struct {
	Name   string
	Offset uint32 // bytes
	Size   uint32 // bytes
}

// inst is an instruction without its first word.
type inst struct {
	op   uint16
	args []uint32
}

const (
	magic     = 0x07230203
	maxDepth  = 64       // nesting of types and constants that is followed
	maxShared = 1 << 30  // bytes; more is a mistake of the module
	maxBound  = 64 << 20 // words
)

func errf(format string, args ...any) error {
	return fmt.Errorf("spirv: parse: %s", fmt.Sprintf(format, args...))
}

// Parse reads a module of little-endian words with one compute entry point.
func Parse(code []byte) (*Module, error) {
	if len(code)%4 != 0 || len(code) < 20 || len(code) > maxBound*4 {
		return nil, errf("%d bytes are no module", len(code))
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	if words[0] != magic {
		return nil, errf("magic number is %#08x, want %#08x", words[0], magic)
	}
	m := &Module{
		Version: [2]int{int(words[1] >> 16 & 0xFF), int(words[1] >> 8 & 0xFF)},
		names:   map[uint32][]uint32{}, memberNames: map[[2]uint32][]uint32{},
		decorations: map[[2]uint32][]uint32{}, members: map[[3]uint32][]uint32{},
		types: map[uint32]inst{}, values: map[uint32]inst{},
	}
	for at := 5; at < len(words); {
		n, op := int(words[at]>>16), uint16(words[at])
		if op == opFunction { // all that is read here comes before
			break
		}
		if n == 0 || at+n > len(words) {
			return nil, errf("instruction at word %d runs past the end", at)
		}
		if err := m.collect(inst{op, words[at+1 : at+n]}); err != nil {
			return nil, err
		}
		at += n
	}
	if m.EntryPoint == "" {
		return nil, errf("no compute entry point")
	}
	return m, m.resolve()
}

// minArgs has the least number of operands of the instructions read here.
var minArgs = map[uint16]int{
	opName: 2, opMemberName: 3, opExtension: 1, opEntryPoint: 3, opExecutionMode: 2, opExecutionModeID: 2, opCapability: 1,
	opTypeBool: 1, opTypeInt: 3, opTypeFloat: 2, opTypeVector: 3, opTypeMatrix: 3, opTypeArray: 3, opTypeRuntimeArray: 2,
	opTypeStruct: 1, opTypePointer: 3, opConstantTrue: 2, opConstantFalse: 2, opConstant: 3, opConstantComposite: 2,
	opSpecConstantTrue: 2, opSpecConstantFalse: 2, opSpecConstant: 3, opSpecConstantComposite: 2, opSpecConstantOp: 3,
	opVariable: 3, opDecorate: 2, opMemberDecorate: 3,
}

func (m *Module) collect(in inst) error {
	need, known := minArgs[in.op]
	if !known {
		return nil
	}
	if len(in.args) < need {
		return errf("opcode %d with %d operands, want at least %d", in.op, len(in.args), need)
	}
	a := in.args
	switch in.op {
	case opName:
		m.names[a[0]] = a[1:]
	case opMemberName:
		m.memberNames[[2]uint32{a[0], a[1]}] = a[2:]
	case opExtension:
		m.Extensions = append(m.Extensions, text(a))
	case opEntryPoint:
		if a[0] == modelGLCompute {
			m.EntryPoint = text(a[2:])
		}
	case opExecutionMode, opExecutionModeID:
		if (a[1] == modeLocalSize || a[1] == modeLocalSizeID) && len(a) >= 5 {
			m.size = in
		}
	case opCapability:
		m.Capabilities = append(m.Capabilities, Capability(a[0]))
	case opTypeBool, opTypeInt, opTypeFloat, opTypeVector, opTypeMatrix, opTypeArray, opTypeRuntimeArray, opTypeStruct, opTypePointer:
		m.types[a[0]] = in
	case opVariable:
		m.variables = append(m.variables, in)
	case opDecorate:
		if a[1] == decorationBuiltIn && len(a) > 2 {
			m.counts = m.counts || a[2] == builtInNumWorkgroups
			if a[2] == builtInWorkgroupSize {
				m.workgroup = a[0]
			}
		}
		m.decorations[[2]uint32{a[0], a[1]}] = a[2:]
	case opMemberDecorate:
		m.members[[3]uint32{a[0], a[1], a[2]}] = a[3:]
	default: // the constants: type, then result
		m.values[a[1]] = in
	}
	return nil
}

// text decodes a string operand: bytes in words, up to a zero.
func text(words []uint32) string {
	var b []byte
	for _, w := range words {
		for range 4 {
			if byte(w) == 0 {
				return string(b)
			}
			b = append(b, byte(w))
			w >>= 8
		}
	}
	return string(b)
}

func (m *Module) resolve() error {
	for _, v := range m.variables {
		pointer, id, class := v.args[0], v.args[1], v.args[2]
		t := m.types[pointer]
		if t.op != opTypePointer {
			continue
		}
		switch class {
		case classPushConstant:
			push, err := m.block(t.args[2])
			if err != nil {
				return err
			}
			m.Push = push
		case classStorageBuffer, classUniform:
			m.Bindings = append(m.Bindings, m.binding(id, t.args[2]))
		}
	}
	slices.SortFunc(m.Bindings, func(a, b Binding) int {
		if a.Set != b.Set {
			return int(a.Set) - int(b.Set)
		}
		return int(a.Binding) - int(b.Binding)
	})
	for key, ops := range m.decorations {
		v, ok := m.values[key[0]]
		if key[1] != decorationSpecID || !ok || len(ops) == 0 {
			continue
		}
		c := Constant{ID: ops[0], Name: text(m.names[key[0]])}
		switch v.op {
		case opSpecConstant:
			c.Default = v.args[2]
		case opSpecConstantTrue:
			c.Default = 1
		}
		m.Constants = append(m.Constants, c)
	}
	slices.SortFunc(m.Constants, func(a, b Constant) int { return int(a.ID) - int(b.ID) })
	return nil
}

func (m *Module) operand(id uint32, decoration uint32) uint32 {
	if ops := m.decorations[[2]uint32{id, decoration}]; len(ops) > 0 {
		return ops[0]
	}
	return 0
}

// binding describes a buffer variable. GLSL's readonly and writeonly arrive as
// decorations of the variable or of every member of its block.
func (m *Module) binding(id, block uint32) Binding {
	b := Binding{Set: m.operand(id, decorationDescriptorSet), Binding: m.operand(id, decorationBinding), Name: text(m.names[id])}
	if b.Name == "" {
		b.Name = text(m.names[block])
	}
	all := func(decoration uint32) bool {
		if _, ok := m.decorations[[2]uint32{id, decoration}]; ok {
			return true
		}
		t := m.types[block]
		if t.op != opTypeStruct || len(t.args) < 2 {
			return false
		}
		for i := range t.args[1:] {
			if _, ok := m.members[[3]uint32{block, uint32(i), decoration}]; !ok {
				return false
			}
		}
		return true
	}
	b.ReadOnly, b.WriteOnly = all(decorationNonWritable), all(decorationNonReadable)
	return b
}

// block lists the members of a struct with explicit offsets.
func (m *Module) block(id uint32) ([]Member, error) {
	t := m.types[id]
	if t.op != opTypeStruct {
		return nil, errf("push constants are not a struct")
	}
	list := []Member{}
	for i, mt := range t.args[1:] {
		ops := m.members[[3]uint32{id, uint32(i), decorationOffset}]
		size, err := m.sizeOf(mt, nil, 0)
		if len(ops) == 0 || err != nil {
			return nil, errf("push constant %d has no offset or no size", i)
		}
		list = append(list, Member{Name: text(m.memberNames[[2]uint32{id, uint32(i)}]), Offset: ops[0], Size: uint32(size)})
	}
	slices.SortFunc(list, func(a, b Member) int { return int(a.Offset) - int(b.Offset) })
	return list, nil
}

// CountsWorkgroups reports whether a shader reads how many workgroups there are.
func (m *Module) CountsWorkgroups() bool { return m.counts }

// String reads "Capability(77)", by the number in the specification.
func (c Capability) String() string { return fmt.Sprintf("Capability(%d)", uint32(c)) }

// Features returns the device features, in the names of package vk, that a module's capabilities
// stand for, nil for none. It reads the beginning of a module, where these are. A capability that
// this package does not know is an error, so that a new one cannot slip in.
func Features(code []byte) (features []string, err error) {
	var unknown []string
	add := func(list ...string) {
		for _, f := range list {
			if f != "" && !slices.Contains(features, f) {
				features = append(features, f)
			}
		}
	}
	has := capabilities(code)
	for _, c := range has {
		f, ok := capabilityFeatures[c]
		if !ok {
			unknown = append(unknown, c.String())
		}
		add(f)
	}
	if slices.Contains(has, GroupNonUniform) { // built for one size of subgroups, all full
		add("subgroupSizeControl", "computeFullSubgroups")
	}
	if slices.Contains(has, CooperativeMatrix) {
		switch {
		case slices.Contains(has, Float8CoopMatrix):
			add("coopmat.e4m3.f32")
		case slices.Contains(has, BFloat16CoopMatrix):
			add("coopmat.bf16.f32")
		default:
			add("coopmat.f16.f32")
		}
	}
	slices.Sort(features)
	if unknown != nil {
		return features, errf("capabilities without a known device feature: %s", strings.Join(unknown, ", "))
	}
	return features, nil
}

// capabilities returns those of a module, with whose instructions it begins.
func capabilities(code []byte) (list []Capability) {
	const header, size = 20, 8
	for at := header; at+size <= len(code) && binary.LittleEndian.Uint32(code[at:]) == size/4<<16|opCapability; at += size {
		list = append(list, Capability(binary.LittleEndian.Uint32(code[at+4:])))
	}
	return list
}
