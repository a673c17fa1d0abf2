package spirv

import "slices"

// pruner leaves blocks out of functions.
type pruner struct {
	m         *Module
	constants *evaluator
}

// block is the code from a label on. A merge comes right before the end of its block.
type block struct {
	label uint32
	code  []inst
	merge inst     // none: op 0
	end   inst     // where it goes on to
	to    []uint32 // the labels of these
	falls bool     // its end was a choice that constants decide
}

// prune returns the function's code without the blocks that are never reached; false if there is
// something that it does not understand. Where nothing is decided the code stays as it is.
func (p pruner) prune(f function) ([]inst, bool) {
	begin := slices.IndexFunc(f.code, func(in inst) bool { return in.op == opLabel })
	if begin < 0 {
		return f.code, true
	}
	blocks, at, decided := []*block(nil), map[uint32]*block{}, false
	for i := begin; i < len(f.code)-1; {
		end := i + 1
		for end < len(f.code)-1 && f.code[end].op != opLabel {
			end++
		}
		b, ok := p.block(f, f.code[i:end])
		if !ok || at[b.label] != nil {
			return nil, false
		}
		blocks, at[b.label] = append(blocks, b), b
		decided = decided || b.falls
		i = end
	}
	if !decided {
		return f.code, true
	}
	reached, ok := reach(blocks[0], at)
	if !ok {
		return nil, false
	}
	if !structured(blocks, reached) {
		return f.code, true
	}
	out, stubs := slices.Clone(f.code[:begin]), stubs(blocks, reached)
	for _, b := range blocks {
		if reached[b.label] {
			b.code = b.phis(at, reached, stubs)
		} else if end, ok := stubs[b.label]; ok {
			b.code = []inst{{opLabel, []uint32{b.label}}, end}
		} else {
			b.code = nil
		}
	}
	for _, b := range blocks {
		out = append(out, b.code...)
	}
	out = append(out, f.code[len(f.code)-1])
	return out, true
}

// block looks at a block's end. A choice whose outcome is known becomes a branch.
func (p pruner) block(f function, code []inst) (*block, bool) {
	n := len(code)
	for n > 1 && (code[n-1].op == opLine || code[n-1].op == opNoLine) { // these are about the next label
		n--
	}
	b := &block{label: code[0].args[0], code: code[:n], end: code[n-1]}
	for i, in := range code[1:n] {
		switch {
		case slices.Contains(ends, in.op) != (i == n-2):
			return nil, false
		case in.op == opLoopMerge || in.op == opSelectionMerge:
			b.merge = in
			if i != n-3 {
				return nil, false
			}
		}
	}
	to, ok := p.targets(f, b.end)
	if b.to = to; b.end.op != opBranchConditional || b.merge.op != opSelectionMerge {
		return b, ok
	}
	if x, err := p.constants.eval(b.end.args[0], 0); err == nil && x.width == 1 {
		b.to = to[1-x.bits:][:1]
		b.end, b.merge, b.falls = inst{opBranch, b.to}, inst{}, true
		b.code = append(slices.Clone(b.code[:n-2]), b.end)
	}
	return b, ok
}

// targets are the labels that a block's last instruction names; false if they are unknown.
func (p pruner) targets(f function, in inst) ([]uint32, bool) {
	switch in.op {
	case opBranch:
		return in.args[:1], true
	case opBranchConditional:
		return in.args[1:3], true
	case opSwitch: // after the default's label pairs of a literal and a label
		selector, err := p.m.scalar(p.typeOf(f, in.args[0]))
		words := 2
		if selector.width > 32 {
			words = 3
		}
		if err != nil || len(in.args[2:])%words != 0 {
			return nil, false
		}
		to := []uint32{in.args[1]}
		for i := 1 + words; i < len(in.args); i += words {
			to = append(to, in.args[i])
		}
		return to, true
	}
	return nil, slices.Contains(ends, in.op)
}

// typeOf is the type of a constant, or of what a function defines.
func (p pruner) typeOf(f function, id uint32) uint32 {
	if v, ok := p.m.values[id]; ok {
		return v.args[0]
	}
	for _, in := range f.code {
		if result, ok := in.defines(); ok && result == id && in.op != opLabel {
			return in.args[0]
		}
	}
	return 0
}

// reach finds the labels that are reached from the first block; false if one is no block's.
// Blocks may come in any order that has each after those that dominate it.
func reach(first *block, at map[uint32]*block) (map[uint32]bool, bool) {
	reached := map[uint32]bool{first.label: true}
	for list := []*block{first}; len(list) > 0; {
		b := list[len(list)-1]
		list = list[:len(list)-1]
		for _, to := range b.to {
			if at[to] == nil {
				return nil, false
			}
			if !reached[to] {
				reached[to], list = true, append(list, at[to])
			}
		}
	}
	return reached, true
}

// structured tells whether every choice that is left has a merge of its own, or leaves what it is
// in. That may have been what a choice was the head of that is none any more.
func structured(blocks []*block, reached map[uint32]bool) bool {
	leaves := map[uint32]bool{}
	for _, b := range blocks {
		if !reached[b.label] || b.merge.op == 0 {
			continue
		}
		leaves[b.merge.args[0]] = true
		if b.merge.op == opLoopMerge {
			leaves[b.merge.args[1]], leaves[b.label] = true, true
		}
	}
	for _, b := range blocks {
		if !reached[b.label] || b.merge.op != 0 || b.end.op == opBranch {
			continue
		}
		var stays uint32
		for _, to := range b.to {
			if leaves[to] || to == stays {
				continue
			}
			if stays != 0 {
				return false
			}
			stays = to
		}
	}
	return true
}

// stubs are the ends of blocks that are not reached but named by a merge. Their own instructions
// may use what is not there any more.
func stubs(blocks []*block, reached map[uint32]bool) map[uint32]inst {
	ends := map[uint32]inst{}
	for _, b := range blocks {
		if !reached[b.label] || b.merge.op == 0 {
			continue
		}
		if merge := b.merge.args[0]; !reached[merge] && ends[merge].op == 0 {
			ends[merge] = inst{op: opUnreachable}
		}
		if b.merge.op == opLoopMerge && !reached[b.merge.args[1]] {
			ends[b.merge.args[1]] = inst{opBranch, []uint32{b.label}}
		}
	}
	return ends
}

// phis is the block's code with those parents of its OpPhi that still lead to it.
func (b *block) phis(at map[uint32]*block, reached map[uint32]bool, stubs map[uint32]inst) []inst {
	out := slices.Clone(b.code)
	for k, in := range out {
		if in.op != opPhi {
			continue
		}
		args := slices.Clone(in.args[:2])
		for i := 2; i+1 < len(in.args); i += 2 {
			if from := at[in.args[i+1]]; from != nil && reached[from.label] && slices.Contains(from.to, b.label) {
				args = append(args, in.args[i:i+2]...)
			}
		}
		if b.merge.op == opLoopMerge { // nothing comes from there, so the value may be any
			if from := b.merge.args[1]; stubs[from].op == opBranch {
				args = append(args, in.args[1], from)
			}
		}
		out[k].args = args
	}
	return out
}
