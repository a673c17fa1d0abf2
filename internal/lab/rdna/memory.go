package rdna

import (
	"sort"
	"unsafe"
)

// span is memory that has a GPU address.
type span struct {
	address, size uint64
	host          unsafe.Pointer
}

// memory is all that has a GPU address, by address.
type memory []span

const addressBits = 1<<48 - 1 // of 64; RADV repeats the highest above them

// put adds memory, or with a nil host takes it away.
func (m *memory) put(s span) {
	s.address &= addressBits
	i := sort.Search(len(*m), func(i int) bool { return (*m)[i].address >= s.address })
	switch here := i < len(*m) && (*m)[i].address == s.address; {
	case here && s.host == nil:
		*m = append((*m)[:i], (*m)[i+1:]...)
	case here:
		(*m)[i] = s
	case s.host != nil:
		*m = append(*m, span{})
		copy((*m)[i+1:], (*m)[i:])
		(*m)[i] = s
	}
}

// at returns n bytes at an address; nil where they do not all lie in one allocation.
func (m memory) at(address, n uint64) unsafe.Pointer {
	s := m.find(address & addressBits)
	if at := address&addressBits - s.address; n <= s.size && at <= s.size-n {
		return unsafe.Add(s.host, at)
	}
	return nil
}

// find returns the allocation that has an address, or the empty one.
func (m memory) find(address uint64) span {
	i := sort.Search(len(m), func(i int) bool { return m[i].address > address }) - 1
	if i < 0 || address-m[i].address >= m[i].size {
		return span{}
	}
	return m[i]
}

// words returns n words at an address; nil where at returns nil.
func (m memory) words(address uint64, n int) []uint32 {
	if p := m.at(address, 4*uint64(n)); p != nil && n > 0 {
		return unsafe.Slice((*uint32)(p), n)
	}
	return nil
}

// view gives one wave after the other access to memory and remembers the last allocation.
type view struct {
	all  memory
	last span
}

func (v *view) at(address, n uint64) unsafe.Pointer {
	address &= addressBits
	if at := address - v.last.address; n <= v.last.size && at <= v.last.size-n {
		return unsafe.Add(v.last.host, at)
	}
	v.last = v.all.find(address)
	if at := address - v.last.address; n <= v.last.size && at <= v.last.size-n {
		return unsafe.Add(v.last.host, at)
	}
	return nil
}
