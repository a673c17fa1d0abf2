package spirv

// ids is a set of these.
type ids []uint64

const maxID = 1 << 22 // of a valid module

func (s ids) has(id uint32) bool { return int(id/64) < len(s) && s[id/64]>>(id%64)&1 != 0 }

// set adds one, and tells whether it is new.
func (s *ids) set(id uint32) bool {
	if id >= maxID || s.has(id) {
		return false
	}
	if n := int(id/64) + 1; n > len(*s) {
		*s = append(*s, make([]uint64, max(n, 2*len(*s))-len(*s))...)
	}
	(*s)[id/64] |= 1 << (id % 64)
	return true
}

// unset takes one out.
func (s ids) unset(id uint32) {
	if s.has(id) {
		s[id/64] &^= 1 << (id % 64)
	}
}
