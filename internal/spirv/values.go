package spirv

// number is a scalar constant. Bits above its width are 0.
type number struct {
	bits   uint64
	width  uint32 // bits; 1 of a truth value
	signed bool   // what its type says; operations say for themselves how they take it
}

// extended is the number with its highest bit as its sign.
func (n number) extended() int64 { return int64(n.bits<<(64-n.width)) >> (64 - n.width) }

// eval computes a scalar integer or boolean constant, as a signed or unsigned number according to
// its type. Constants are those of LocalSize.
func (m *Module) eval(id uint32, constants []uint32) (int64, error) {
	e := evaluator{m: m, constants: constants, done: map[uint32]number{}}
	n, err := e.eval(id, 0)
	if err != nil {
		return 0, err
	}
	if n.signed {
		return n.extended(), nil
	}
	return int64(n.bits), nil
}

// evaluator computes constants, each once: one may name another twice, which does the same.
type evaluator struct {
	m         *Module
	constants []uint32
	done      map[uint32]number
}

func (e *evaluator) eval(id uint32, depth int) (number, error) {
	if n, ok := e.done[id]; ok {
		return n, nil
	}
	v, ok := e.m.values[id]
	if !ok || depth > maxDepth {
		return number{}, errf("%d is no constant, or nested too deeply", id)
	}
	if v.op == opSpecConstantOp && v.args[2] == opCompositeExtract {
		return e.extract(v, depth)
	}
	n, err := e.m.scalar(v.args[0])
	if err != nil {
		return n, err
	}
	ops := e.m.decorations[[2]uint32{id, decorationSpecID}]
	if len(ops) > 0 && int(ops[0]) < len(e.constants) {
		if n.width != 1 && n.width != 32 {
			return n, errf("specialisation constant %d has %d bits, but 32 are given", ops[0], n.width)
		}
		n.bits = uint64(e.constants[ops[0]])
		if n.width == 1 {
			n.bits = min(n.bits, 1)
		}
		e.done[id] = n
		return n, nil
	}
	switch v.op {
	case opConstantTrue, opSpecConstantTrue:
		n.bits = 1
	case opConstantFalse, opSpecConstantFalse:
	case opConstant, opSpecConstant:
		n.bits = uint64(v.args[2])
		if n.width > 32 && len(v.args) > 3 {
			n.bits |= uint64(v.args[3]) << 32
		}
	case opSpecConstantOp:
		if n.bits, err = e.operation(v.args[2], v.args[3:], depth); err != nil {
			return n, err
		}
	default:
		return n, errf("constant %d is not a scalar", id)
	}
	n.bits &= 1<<n.width - 1
	e.done[id] = n
	return n, nil
}

// scalar is 0 of a scalar type.
func (m *Module) scalar(typ uint32) (n number, err error) {
	switch t := m.types[typ]; t.op {
	case opTypeBool:
		return number{width: 1}, nil
	case opTypeInt:
		n = number{width: t.args[1], signed: t.args[2] != 0}
	case opTypeFloat:
		n = number{width: t.args[1]}
	}
	if n.width < 2 || n.width > 64 {
		return n, errf("type %d is not a scalar", typ)
	}
	return n, nil
}

func (e *evaluator) extract(v inst, depth int) (number, error) {
	args := v.args[3:]
	if len(args) != 2 {
		return number{}, errf("extraction from a nested constant")
	}
	c := e.m.values[args[0]]
	if i := int(args[1]) + 2; c.op == opConstantComposite || c.op == opSpecConstantComposite {
		if i >= 2 && i < len(c.args) {
			return e.eval(c.args[i], depth+1)
		}
	}
	return number{}, errf("extraction from what is no constant")
}

func (e *evaluator) operation(op uint32, args []uint32, depth int) (uint64, error) {
	want := 2
	switch op {
	case opUConvert, opSConvert, opBitcast, opLogicalNot:
		want = 1
	case opSelect:
		want = 3
	}
	if len(args) != want {
		return 0, errf("operation %d on constants with %d operands", op, len(args))
	}
	var x [3]number
	for i, id := range args {
		var err error
		if x[i], err = e.eval(id, depth+1); err != nil {
			return 0, err
		}
	}
	r, ok := apply(op, x)
	if !ok {
		return 0, errf("operation %d on constants is not supported, or has no result", op)
	}
	return r, nil
}

// apply computes an operation on constants; false for one that it does not know, and where
// it has no result.
func apply(op uint32, x [3]number) (uint64, bool) {
	a, b := x[0].bits, x[1].bits
	switch op {
	case opLogicalNot:
		return a ^ 1, true
	case opUConvert, opBitcast:
		return a, true
	case opSConvert:
		return uint64(x[0].extended()), true
	case opSelect:
		if a != 0 {
			return b, true
		}
		return x[2].bits, true
	case opShiftLeftLogical:
		return a << b, b < uint64(x[0].width)
	case opShiftRightLogical:
		return a >> b, b < uint64(x[0].width)
	case opShiftRightArithmetic:
		return uint64(x[0].extended() >> b), b < uint64(x[0].width)
	}
	if x[0].width != x[1].width {
		return 0, false
	}
	if holds, ok := relation(op, x[0], x[1]); ok {
		if holds {
			return 1, true
		}
		return 0, true
	}
	switch op {
	case opIAdd:
		return a + b, true
	case opISub:
		return a - b, true
	case opIMul:
		return a * b, true
	case opUDiv, opSDiv, opUMod, opSRem, opSMod:
		return divide(op, x[0], x[1])
	case opBitwiseOr:
		return a | b, true
	case opBitwiseXor:
		return a ^ b, true
	case opBitwiseAnd:
		return a & b, true
	}
	return 0, false
}

func divide(op uint32, a, b number) (uint64, bool) {
	if b.bits == 0 {
		return 0, false
	}
	n, d := a.extended(), b.extended()
	switch op {
	case opUDiv:
		return a.bits / b.bits, true
	case opUMod:
		return a.bits % b.bits, true
	case opSDiv:
		return uint64(n / d), true
	}
	r := n % d
	if op == opSMod && r != 0 && (r < 0) != (d < 0) {
		r += d
	}
	return uint64(r), true
}

// relation says whether what an operation asks of two numbers holds; ok is false for
// operations that do not ask.
func relation(op uint32, a, b number) (holds, ok bool) {
	switch op {
	case opLogicalOr:
		return a.bits|b.bits != 0, true
	case opLogicalAnd:
		return a.bits&b.bits != 0, true
	case opIEqual:
		return a.bits == b.bits, true
	case opINotEqual:
		return a.bits != b.bits, true
	case opUGreaterThan:
		return a.bits > b.bits, true
	case opSGreaterThan:
		return a.extended() > b.extended(), true
	case opUGreaterThanEqual:
		return a.bits >= b.bits, true
	case opSGreaterThanEqual:
		return a.extended() >= b.extended(), true
	case opULessThan:
		return a.bits < b.bits, true
	case opSLessThan:
		return a.extended() < b.extended(), true
	case opULessThanEqual:
		return a.bits <= b.bits, true
	case opSLessThanEqual:
		return a.extended() <= b.extended(), true
	}
	return false, false
}
