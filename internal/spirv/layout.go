package spirv

// LocalSize is the size of a workgroup. The i-th of constants stands for the
// specialisation constant with the id i; those that are not given keep their
// default.
func (m *Module) LocalSize(constants ...uint32) ([3]uint32, error) {
	var s [3]uint32
	if m.workgroup != 0 { // a constant decorated as the built-in wins over the execution mode
		v, ok := m.values[m.workgroup]
		if !ok || len(v.args) != 5 {
			return s, errf("built-in workgroup size is no constant of three")
		}
		return m.three(v.args[2:], constants)
	}
	switch {
	case m.size.args == nil:
		return s, errf("no workgroup size")
	case m.size.args[1] == modeLocalSize:
		copy(s[:], m.size.args[2:5])
		return s, nil
	}
	return m.three(m.size.args[2:5], constants)
}

func (m *Module) three(ids, constants []uint32) (s [3]uint32, err error) {
	for i := range s {
		v, err := m.eval(ids[i], constants)
		if err != nil {
			return s, err
		}
		s[i] = uint32(v)
	}
	return s, nil
}

// SharedBytes adds up the workgroup variables, without the padding that a driver
// may put between them. The constants are those of LocalSize.
func (m *Module) SharedBytes(constants ...uint32) (int, error) {
	total := 0
	for _, v := range m.variables {
		if v.args[2] != classWorkgroup {
			continue
		}
		t := m.types[v.args[0]]
		if t.op != opTypePointer {
			return 0, errf("variable %d has no pointer type", v.args[1])
		}
		n, err := m.sizeOf(t.args[2], constants, 0)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// sizeOf is the size of a type in bytes with every part as large as it is:
// scalars and vectors tightly packed, structs with members at multiples of
// their alignment. It agrees with the layouts std430 and scalar for the blocks
// that this project writes.
func (m *Module) sizeOf(id uint32, constants []uint32, depth int) (int, error) {
	t, ok := m.types[id]
	if !ok || depth > maxDepth {
		return 0, errf("type %d is unknown or nested too deeply", id)
	}
	n, elem := int64(1), uint32(0)
	switch t.op {
	case opTypeBool:
		return 4, nil
	case opTypeInt, opTypeFloat:
		return int(t.args[1]&0xFF) / 8, nil
	case opTypePointer:
		return 8, nil // the only ones with a size are device addresses
	case opTypeStruct:
		size, align := 0, 1
		for i, mt := range t.args[1:] {
			s, err := m.sizeOf(mt, constants, depth+1)
			if err != nil {
				return 0, err
			}
			a := m.alignOf(mt, depth+1)
			size, align = (size+a-1)/a*a, max(align, a)
			if ops := m.members[[3]uint32{id, uint32(i), decorationOffset}]; len(ops) > 0 {
				size = int(ops[0])
			}
			size += s
		}
		return (size + align - 1) / align * align, nil
	case opTypeVector, opTypeMatrix:
		n, elem = int64(t.args[2]), t.args[1]
	case opTypeArray:
		var err error
		if n, err = m.eval(t.args[2], constants); err != nil {
			return 0, err
		}
		elem = t.args[1]
	default:
		return 0, errf("type %d has no size", id)
	}
	s, err := m.sizeOf(elem, constants, depth+1)
	if err != nil {
		return 0, err
	}
	if n < 0 || n > maxShared || int64(s)*n > maxShared {
		return 0, errf("type %d has %d elements of %d bytes", id, n, s)
	}
	return int(n) * s, nil
}

// alignOf is the size of a type's largest scalar.
func (m *Module) alignOf(id uint32, depth int) int {
	t := m.types[id]
	if depth > maxDepth {
		return 1
	}
	switch t.op {
	case opTypeInt, opTypeFloat:
		return max(int(t.args[1]&0xFF)/8, 1)
	case opTypeVector, opTypeMatrix, opTypeArray, opTypeRuntimeArray:
		return m.alignOf(t.args[1], depth+1)
	case opTypePointer:
		return 8
	case opTypeStruct:
		a := 1
		for _, mt := range t.args[1:] {
			a = max(a, m.alignOf(mt, depth+1))
		}
		return a
	}
	return 4
}
