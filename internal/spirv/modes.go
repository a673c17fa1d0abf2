package spirv

import (
	"encoding/binary"
	"slices"
)

// Mode is an execution mode about binary16 numbers, and the capability that a module with it has.
type Mode struct{ mode, capability uint32 }

// Modes of SPV_KHR_float_controls, which is part of SPIR-V from 1.4 on.
var (
	PreserveDenorms = Mode{4459, 4464} // subnormal numbers are what they are, not zeros
	RoundNearest    = Mode{4462, 4467} // conversions round to nearest even, not towards zero
)

// WithModes returns a module that asks for execution modes of binary16 numbers, before all others
// of its entry point. A module that has none of these numbers, or is none, stays as it is. What a
// device that does not know a mode does with it is undefined.
func WithModes(code []byte, modes ...Mode) []byte {
	var uses bool
	var capabilities, entry, id int // where these instructions end, in bytes
	for at := 20; at+4 <= len(code) && entry == 0; {
		word := binary.LittleEndian.Uint32(code[at:])
		op, next := word&0xFFFF, at+int(word>>16)*4
		if next <= at || next > len(code) {
			return code
		}
		switch {
		case op == opCapability && next == at+8:
			capabilities = next
			uses = uses || binary.LittleEndian.Uint32(code[at+4:]) == uint32(Float16)
		case op == opEntryPoint && next >= at+12:
			entry, id = next, int(binary.LittleEndian.Uint32(code[at+8:]))
		}
		at = next
	}
	if !uses || entry == 0 || len(modes) == 0 {
		return code
	}
	var asks, has []byte
	for _, m := range modes {
		has = words(has, opCapability|2<<16, m.capability)
		asks = words(asks, opExecutionMode|4<<16, uint32(id), m.mode, 16)
	}
	return slices.Concat(code[:capabilities], has, code[capabilities:entry], asks, code[entry:])
}

func words(to []byte, list ...uint32) []byte {
	for _, w := range list {
		to = binary.LittleEndian.AppendUint32(to, w)
	}
	return to
}
