package rdna

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
)

// launch is one dispatch.
type launch struct {
	m       *Machine
	number  uint64
	prog    *program
	user    []uint32 // the first scalar registers
	ids     uint32   // which numbers of the workgroup follow them: x, y, z, and of the wave
	shared  int      // bytes of shared memory
	vectors int      // registers of a wave
	threads [3]uint32
	last    [3]uint32 // threads of the last workgroup; 0: as all
	first   [3]uint32 // workgroup
	groups  [3]uint32
	failed  atomic.Bool
}

// floatMode is the only mode of floats that the vector instructions here follow: round to nearest,
// denormals of 32 bits flushed, of 16 and 64 bits kept.
const floatMode = 0xc0

func (q *queue) dispatch(n [3]uint32, initiator uint32) {
	l, err := q.launch(n, initiator)
	if err != nil {
		q.m.fault(Fault{What: err.Error()})
		return
	}
	l.run()
}

// launch reads the registers of a dispatch.
func (q *queue) launch(n [3]uint32, initiator uint32) (*launch, error) {
	rsrc1, rsrc2 := q.reg(regRsrc1), q.reg(regRsrc2)
	q.launches++
	l := &launch{m: q.m, number: q.launches, groups: n, ids: rsrc2 >> 7 & 15, shared: int(rsrc2>>15&0x1ff) * 512}
	lanes := 64
	if initiator&waves32 != 0 {
		lanes = 32
	}
	switch {
	case rsrc1>>12&0xff != floatMode:
		return nil, fmt.Errorf("mode of floats %#x is not known", rsrc1>>12&0xff)
	case rsrc2&1 == 1:
		return nil, fmt.Errorf("scratch memory is not known")
	}
	for i := range 3 {
		t := q.reg(regThreads + 4*uint32(i))
		l.threads[i] = t & 0xffff
		if initiator&partialGroups != 0 {
			l.last[i] = t >> 16
		}
		if initiator&startAtZero == 0 {
			l.first[i] = q.reg(regStart + 4*uint32(i))
		}
		if l.threads[i] == 0 {
			return nil, fmt.Errorf("a workgroup of no threads")
		}
		if initiator&inThreads != 0 {
			l.groups[i] = (n[i] + l.threads[i] - 1) / l.threads[i]
			l.last[i] = n[i] % l.threads[i]
		}
	}
	for i := range rsrc2 >> 1 & 31 {
		l.user = append(l.user, q.reg(regUser+4*i))
	}
	l.vectors = vectorRegisters(lanes, rsrc1)
	var err error
	l.prog, err = q.m.program(wide(q.reg(regCode), q.reg(regCode+4))<<8, lanes)
	return l, err
}

// vectorRegisters returns the vector registers of a wave, from the field of RSRC1 in blocks.
func vectorRegisters(lanes int, rsrc1 uint32) int { return min(256, int(rsrc1&63+1)*256/lanes) }

// run executes all workgroups, on as many processors as there are.
func (l *launch) run() {
	size := [3]uint64{}
	for i := range 3 {
		if l.groups[i] <= l.first[i] {
			return
		}
		size[i] = uint64(l.groups[i] - l.first[i])
	}
	total := size[0] * size[1] * size[2]
	var order []int
	if l.m.Order == Shuffled && total < 1<<20 {
		order = rand.New(rand.NewPCG(l.m.Seed, total)).Perm(int(total))
	}
	if l.m.Count {
		l.prog.launches++
	}
	var next atomic.Uint64
	work := func(k *worker) {
		k.begin(l)
		for !l.failed.Load() {
			i := next.Add(1) - 1
			if i >= total {
				return
			}
			switch {
			case order != nil:
				i = uint64(order[i])
			case l.m.Order == Backward:
				i = total - 1 - i
			}
			x, y, z := i%size[0], i/size[0]%size[1], i/size[0]/size[1]
			k.group([3]uint32{l.first[0] + uint32(x), l.first[1] + uint32(y), l.first[2] + uint32(z)})
		}
	}
	n := min(runtime.GOMAXPROCS(0), int(min(total, 1<<10)))
	for len(l.m.workers) < n {
		l.m.workers = append(l.m.workers, newWorker(l.m))
	}
	if n == 1 {
		work(l.m.workers[0])
		return
	}
	var done sync.WaitGroup
	for _, k := range l.m.workers[:n] {
		done.Go(func() { work(k) })
	}
	done.Wait()
}

// worker runs one workgroup at a time.
type worker struct {
	m      *Machine
	l      *launch
	waves  []*wave
	shared shared
	order  rand.PCG
	counts map[*program][]uint64 // how often each instruction ran
	now    []uint64              // of the launch's program

	tallies map[*program]*tally
	tally   *tally // of the launch's program; nil: nothing is counted
}

func newWorker(m *Machine) *worker {
	return &worker{m: m, counts: map[*program][]uint64{}, tallies: map[*program]*tally{}}
}

func (k *worker) begin(l *launch) {
	k.l = l
	if k.counts[l.prog] == nil {
		k.counts[l.prog] = make([]uint64, len(l.prog.insts))
	}
	k.now, k.tally = k.counts[l.prog], nil
	if l.m.Count {
		if k.tallies[l.prog] == nil {
			k.tallies[l.prog] = &tally{runs: make([]uint64, len(l.prog.insts))}
		}
		k.tally = k.tallies[l.prog]
	}
}

// group runs one workgroup to its end, each wave until its next barrier.
func (k *worker) group(id [3]uint32) {
	l := k.l
	threads := l.threads
	for i := range 3 {
		if l.last[i] != 0 && id[i] == l.groups[i]-1 {
			threads[i] = l.last[i]
		}
	}
	total, lanes := int(threads[0]*threads[1]*threads[2]), l.prog.lanes
	n := (total + lanes - 1) / lanes
	for len(k.waves) < n {
		k.waves = append(k.waves, &wave{})
	}
	k.shared.begin(l.shared)
	if k.tally != nil {
		k.tally.groups++
		k.tally.waves += uint64(n)
	}
	for i := range n {
		k.waves[i].begin(k, id, i, threads)
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
		if l.m.Order == Backward {
			order[i] = n - 1 - i
		}
	}
	k.order.Seed(l.m.Seed, l.number<<32^uint64(id[0]+id[1]<<10+id[2]<<20))
	rng := rand.New(&k.order)
	for left := n; left > 0 && !l.failed.Load(); {
		if l.m.Order == Shuffled {
			rng.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		for _, i := range order {
			w := k.waves[i]
			if w.ended || l.failed.Load() {
				continue
			}
			w.run()
			w.epoch++
			if w.ended {
				left--
			}
		}
	}
}
