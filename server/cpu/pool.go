package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// spin is the time that a core looks for work before it sleeps: as long as a GPU may take for
	// the attention between two pieces of work. Waking many cores takes longer than most pieces.
	spin = time.Millisecond
	// looks counts looks for work before other goroutines run, whose queue all would wait for.
	looks = 100
	// shares divides what is left of a job among the cores: a core takes one share, neighbouring
	// tasks, at a time.
	shares = 8
)

// Pool runs tasks on several cores. One goroutine at a time calls Run.
type Pool struct {
	workers int
	mu      sync.Mutex
	wake    sync.Cond
	current atomic.Pointer[job]
	closed  atomic.Bool
}

// job is a call of Run.
type job struct {
	tasks      int64
	parts      int64 // shares of what is left
	f          func(task int)
	next, done atomic.Int64
}

// NewPool starts workers: 0 is as many as the program may use.
func NewPool(workers int) *Pool {
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	p := &Pool{workers: workers}
	p.wake.L = &p.mu
	p.current.Store(&job{})
	for range workers - 1 {
		go p.work()
	}
	return p
}

// Workers returns the number of cores that work, the caller's included.
func (p *Pool) Workers() int { return p.workers }

// Run calls f for each of n tasks, in any order, and returns when all are done.
func (p *Pool) Run(n int, f func(task int)) {
	j := &job{tasks: int64(n), parts: int64(shares * p.workers), f: f}
	if n > 1 && p.workers > 1 {
		p.mu.Lock()
		p.current.Store(j)
		p.wake.Broadcast()
		p.mu.Unlock()
	}
	j.run()
	for looked := 1; j.done.Load() < j.tasks; looked++ {
		if looked%looks == 0 {
			runtime.Gosched()
		}
	}
}

// run takes tasks until none is left: several neighbours while many are left, whose memory is read
// on where the core stopped, and single ones at last, so that cores end together.
func (j *job) run() {
	for first := j.next.Load(); first < j.tasks; first = j.next.Load() {
		n := max(1, (j.tasks-first)/j.parts)
		if !j.next.CompareAndSwap(first, first+n) {
			continue
		}
		for i := range n {
			j.f(int(first + i))
		}
		j.done.Add(n)
	}
}

func (p *Pool) work() {
	last := p.current.Load()
	for !p.closed.Load() {
		j := p.await(last)
		j.run()
		last = j
	}
}

// await returns a job that is not the last one, or any when the pool is closed.
func (p *Pool) await(last *job) *job {
	for began := time.Now(); time.Since(began) < spin; runtime.Gosched() {
		for range looks {
			if j := p.current.Load(); j != last {
				return j
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.current.Load() == last && !p.closed.Load() {
		p.wake.Wait()
	}
	return p.current.Load()
}

// Close ends the workers. Nothing may run.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed.Store(true)
	p.wake.Broadcast()
}
