package rdna

import (
	"time"
	"unsafe"
)

// The PM4 packets that do something here; all others only order what is in order anyway.
const (
	pktSetBase          = 0x11
	pktDispatchDirect   = 0x15
	pktDispatchIndirect = 0x16
	pktWriteData        = 0x37
	pktIndirectBuffer   = 0x3f
	pktCopyData         = 0x40
	pktReleaseMem       = 0x49
	pktDMAData          = 0x50
	pktSetShReg         = 0x76
	pktSetShRegPairs    = 0xba
	pktSetShPacked      = 0xbb
	pktSetShPackedN     = 0xbd
)

// idle are packets of state, caches and waiting.
var idle = map[uint32]bool{
	0x10: true, 0x12: true, 0x22: true, 0x28: true, 0x2f: true, 0x3c: true, 0x42: true, 0x46: true, 0x47: true, 0x58: true,
	0x5e: true, 0x5f: true, 0x61: true, 0x68: true, 0x69: true, 0x78: true, 0x79: true, 0x9b: true, 0xb8: true, 0xb9: true, 0xbe: true,
}

// Registers of compute, as bytes; SET_SH_REG counts words from shRegs.
const (
	shRegs     = 0xb000
	regStart   = 0xb810 // first workgroup, x y z
	regThreads = 0xb81c // threads of a workgroup, x y z: all | those of the last one << 16
	regCode    = 0xb830 // address >> 8
	regRsrc1   = 0xb848
	regRsrc2   = 0xb84c
	regUser    = 0xb900
)

// Bits of a dispatch's initiator.
const (
	partialGroups = 1 << 1
	startAtZero   = 1 << 2
	inThreads     = 1 << 5
	waves32       = 1 << 15
)

// queue is the state of the command processor.
type queue struct {
	m    *Machine
	regs map[uint32]uint32 // by word from shRegs
	base uint64            // of arguments of indirect dispatches

	launches uint64
}

func (q *queue) reg(at uint32) uint32 { return q.regs[(at-shRegs)/4] }

func wide(lo, hi uint32) uint64 { return uint64(lo) | uint64(hi)<<32 }

// run executes n words of commands.
func (q *queue) run(address uint64, n int) {
	w := q.m.memory.words(address, n)
	if w == nil {
		q.m.fault(Fault{What: "commands outside all memory", Address: address})
		return
	}
	for i := 0; i < len(w); {
		h := w[i]
		i++
		if h>>30 != 3 || h>>16&0x3fff == 0x3fff { // fill words, and a packet without data
			continue
		}
		count := min(int(h>>16&0x3fff)+1, len(w)-i)
		if !q.packet(h>>8&0xff, w[i:i+count]) {
			return
		}
		i += count
	}
}

// packet executes one; false: what comes next lies elsewhere and has been executed.
func (q *queue) packet(op uint32, d []uint32) bool {
	switch op {
	case pktSetShReg:
		for i, x := range d[1:] {
			q.regs[d[0]&0xffff+uint32(i)] = x
		}
	case pktSetShRegPairs:
		for i := 0; i+1 < len(d); i += 2 {
			q.regs[d[i]&0xffff] = d[i+1]
		}
	case pktSetShPacked, pktSetShPackedN:
		for i := 1; i+2 < len(d); i += 3 {
			q.regs[d[i]&0xffff], q.regs[d[i]>>16] = d[i+1], d[i+2]
		}
	case pktDispatchDirect:
		q.dispatch([3]uint32{d[0], d[1], d[2]}, d[3])
	case pktSetBase:
		q.base = wide(d[1], d[2])
	case pktDispatchIndirect:
		q.indirect(d)
	case pktIndirectBuffer:
		q.run(wide(d[0], d[1]&0xffff), int(d[2]&0xfffff))
		return d[2]>>20&1 == 0 // a chain does not come back
	case pktDMAData:
		q.dma(d)
	case pktWriteData:
		if to := d[0] >> 8 & 15; to == 1 || to == 2 || to == 5 {
			q.store(wide(d[1], d[2]), d[3:]...)
		}
	case pktCopyData:
		q.copyData(d)
	case pktReleaseMem:
		q.release(d)
	default:
		if !idle[op] {
			q.m.fault(Fault{What: "a packet that is not known", Address: uint64(op)})
		}
	}
	return true
}

func (q *queue) indirect(d []uint32) {
	at, initiator := q.base+uint64(d[0]), d[1]
	if len(d) == 3 { // of a queue for compute only
		at, initiator = wide(d[0], d[1]), d[2]
	}
	n := q.m.memory.words(at, 3)
	if n == nil {
		q.m.fault(Fault{What: "arguments of an indirect dispatch outside all memory", Address: at})
		return
	}
	q.dispatch([3]uint32(n), initiator)
}

func (q *queue) store(address uint64, x ...uint32) {
	to := q.m.memory.words(address, len(x))
	if to == nil {
		q.m.fault(Fault{What: "a packet writes outside all memory", Address: address})
		return
	}
	copy(to, x)
}

func (q *queue) dma(d []uint32) {
	bytes, from, to := uint64(d[5]&0x3ffffff), wide(d[1], d[2]), wide(d[3], d[4])
	if bytes == 0 || d[0]>>20&3 == 2 { // nothing, or into caches only
		return
	}
	dst := q.m.memory.at(to, bytes)
	if dst == nil {
		q.m.fault(Fault{What: "a DMA writes outside all memory", Address: to})
		return
	}
	if d[0]>>29&3 == 2 { // fill
		for i := uint64(0); i+4 <= bytes; i += 4 {
			*(*uint32)(unsafe.Add(dst, i)) = d[1]
		}
		return
	}
	src := q.m.memory.at(from, bytes)
	if src == nil {
		q.m.fault(Fault{What: "a DMA reads outside all memory", Address: from})
		return
	}
	copy(unsafe.Slice((*byte)(dst), bytes), unsafe.Slice((*byte)(src), bytes))
}

// ticks is the GPU's clock, of 100 MHz.
func ticks() uint64 { return uint64(time.Now().UnixNano()) / 10 }

func (q *queue) copyData(d []uint32) {
	if to := d[0] >> 8 & 15; to != 1 && to != 2 && to != 5 {
		return
	}
	n := 1 + int(d[0]>>16&1)
	v := [2]uint32{d[1], d[2]}
	switch d[0] & 15 {
	case 1, 2: // memory
		from := q.m.memory.words(wide(d[1], d[2]), n)
		if from == nil {
			q.m.fault(Fault{What: "a copy reads outside all memory", Address: wide(d[1], d[2])})
			return
		}
		copy(v[:], from)
	case 5: // what the packet says
	case 9:
		t := ticks()
		v = [2]uint32{uint32(t), uint32(t >> 32)}
	default:
		q.m.fault(Fault{What: "a copy of a register that is not known", Address: uint64(d[1])})
	}
	q.store(wide(d[3], d[4]), v[:n]...)
}

func (q *queue) release(d []uint32) {
	if len(d) < 6 {
		return
	}
	at := wide(d[2], d[3])
	switch d[1] >> 29 & 7 {
	case 1:
		q.store(at, d[4])
	case 2:
		q.store(at, d[4], d[5])
	case 3:
		t := ticks()
		q.store(at, uint32(t), uint32(t>>32))
	}
}
