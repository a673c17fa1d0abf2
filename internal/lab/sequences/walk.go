package sequences

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vkmla/vkmla/pipeline"
)

// WalkOptions say what a walk does.
type WalkOptions struct {
	Pages map[string]int // of an engine, of other sizes than those of the others

	Steps   int           // operations, of all goroutines together; 0: any number
	Time    time.Duration // after which it ends; 0: never
	Workers int           // goroutines
	Seed    uint64
	Long    bool // steps of hundreds of tokens, for which more kernels are compiled
	Alone   int  // tokens of each script that a session alone repeats at the end

	Live     func() map[string]int // Vulkan objects, by kind
	Progress func(line string)     // called now and then; may be nil
}

// walk does random things with the sessions of some engines, from several goroutines at once:
// prompts, decode, drafts, forks, truncation, saving, restoring, cancelling, closing, with caches
// that grow and are full now and then.
type walk struct {
	*Lab
	o       WalkOptions
	scripts []*script
	places  []*place
	saved   snapshots

	steps  atomic.Int64
	ended  atomic.Bool
	mu     sync.Mutex
	did    map[string]int
	wrong  error
	stages []Stage
}

// Report says what a walk did and what it held.
type Report struct {
	Steps     int
	Took      time.Duration
	Did       map[string]int // operations by name; "no NAME: WHY" are those that failed as they should
	Compared  int            // tokens and snapshots that were compared with earlier ones
	First     int            // tokens and snapshots that were seen for the first time
	Stages    []Stage
	LeftLive  map[string]int    // objects that were not there at the beginning, of those that a device does not keep
	LeftBytes map[string]uint64 // memory by label, if it is other than at the beginning
}

// String lists all but the stages.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d steps, %v; %d compared, %d seen for the first time\n", r.Steps, r.Took.Round(time.Second), r.Compared, r.First)
	for _, name := range slices.Sorted(maps.Keys(r.Did)) {
		fmt.Fprintf(&b, "%9d %s\n", r.Did[name], name)
	}
	return b.String()
}

// sharedTokens bounds the first tokens that each script of a walk shares with the first one, so
// that sessions meet again and again with the same history.
var sharedTokens = []int{0, 6, 45, 130, 131, 250}

// Walk walks, compares the bits of every token with what the same history gave before, in whatever
// session, and at the end with a session alone. It returns the first thing that was wrong.
func (l *Lab) Walk(o WalkOptions) (*Report, error) {
	x := &walk{Lab: l, o: o, did: map[string]int{}}
	l.memory = newMemory()
	for i, n := range sharedTokens {
		x.scripts = append(x.scripts, l.script(uint64(i+1), n))
	}
	apart := &worker{walk: x, rng: rand.New(rand.NewPCG(o.Seed, 98))}
	apart.transfer() // see after
	before, inUse, start := x.stage(), l.dev.MemoryInUse(), time.Now()
	for _, p := range x.newPlaces() {
		if err := p.open(x); err != nil {
			return nil, err
		}
		x.places = append(x.places, p)
	}
	watched := x.watch(start)
	var workers sync.WaitGroup
	for i := range o.Workers {
		w := &worker{walk: x, rng: rand.New(rand.NewPCG(o.Seed, uint64(i)))}
		workers.Go(w.walkOn)
	}
	workers.Wait()
	x.end()
	watched()
	for _, p := range x.places {
		p.emptied(x)
	}
	if x.wrong == nil {
		x.alone()
	}
	// A transfer that is cancelled leaves its staging memory to the device, and the next one makes
	// another: without a next one there is an object less.
	apart.transfer()
	after, m := x.stage(), l.memory
	r := &Report{Steps: int(x.steps.Load()), Took: time.Since(start), Did: x.did, Compared: m.compared, First: m.first, Stages: x.stages,
		LeftLive: map[string]int{}}
	if now := l.dev.MemoryInUse(); !maps.Equal(now, inUse) {
		r.LeftBytes = now
	}
	for _, kind := range []string{"memory", "buffer", "command pool", "query pool"} {
		if n := after.Live[kind] - before.Live[kind]; n != 0 {
			r.LeftLive[kind] = n
		}
	}
	return r, x.wrong
}

// newPlaces returns the engines: invariant ones with pages, steps and memory of different sizes,
// and one whose bits depend on sizes of steps.
func (x *walk) newPlaces() []*place {
	o := pipeline.EngineOptions{MaxTokens: min(300, x.tokens()), MaxSessions: 9, MaxStep: max(4, x.cfg.DraftBlock), MaxCacheBytes: 4 << 20,
		Rewind: 9, Invariant: true}
	second, third := o, o
	second.MaxStep, second.Rewind, second.LayerByLayer, second.MaxSessions = max(3, x.cfg.DraftBlock), 130, true, 6
	third.Invariant, third.Rewind = false, 20
	if x.o.Long {
		o.MaxStep, second.MaxStep, third.MaxStep = 256, 70, 128
	}
	return []*place{{o: o}, {o: second, pages: x.o.Pages}, {o: third}}
}

// fail ends the walk.
func (x *walk) fail(what string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wrong == nil {
		x.wrong = fmt.Errorf("step %d: %s: %w", x.steps.Load(), what, err)
	}
	x.end()
}

func (x *walk) end() { x.ended.Store(true) }

func (x *walk) count(what string) {
	x.mu.Lock()
	x.did[what]++
	x.mu.Unlock()
}

// place is an engine and its sessions.
type place struct {
	o     pipeline.EngineOptions
	pages map[string]int // slots of a page by the names of pools

	use     sync.RWMutex // held by those who use the engine, for writing by who replaces it
	closing atomic.Bool  // vk.ErrClosed is no surprise
	e       *engine

	mu  sync.Mutex
	all []*session
}

func (p *place) open(x *walk) (err error) {
	p.e, err = x.paged(context.Background(), p.pages, p.o)
	return err
}

// take takes up to n sessions that are not in use.
func (p *place) take(rng *rand.Rand, n int) (list []*session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range rng.Perm(len(p.all)) {
		if s := p.all[i]; len(list) < n && s.mu.TryLock() {
			list = append(list, s)
		}
	}
	return list
}

func give(list []*session) {
	for _, s := range list {
		s.mu.Unlock()
	}
}

func (p *place) add(s *session) {
	p.mu.Lock()
	p.all = append(p.all, s)
	p.mu.Unlock()
}

func (p *place) remove(s *session) {
	p.mu.Lock()
	p.all = slices.DeleteFunc(p.all, func(other *session) bool { return other == s })
	p.mu.Unlock()
}

// replace closes the engine, beside what others do or when they are done, and opens another one.
func (p *place) replace(x *walk, beside bool) {
	if !p.closing.CompareAndSwap(false, true) {
		return
	}
	if !beside {
		p.use.Lock()
		p.emptied(x)
	} else {
		if err := p.e.Close(); err != nil {
			x.fail("close an engine beside steps", err)
		}
		p.use.Lock()
	}
	defer p.use.Unlock()
	p.all = nil
	if err := p.open(x); err != nil {
		x.fail("open an engine", err)
	}
	p.closing.Store(false)
}

// emptied closes all sessions, demands that nothing is held then, and closes the engine.
func (p *place) emptied(x *walk) {
	var err error
	for _, s := range p.all {
		err = errors.Join(err, s.s.Close())
	}
	if held := p.e.Memory().Held; held != 0 {
		err = errors.Join(err, fmt.Errorf("%d bytes are held without sessions", held))
	}
	if err = errors.Join(err, p.e.Close()); err != nil {
		x.fail("close an engine", err)
	}
}

// alone takes the tokens of each script through a new engine one by one.
func (x *walk) alone() {
	p := &place{o: x.places[0].o}
	p.o.MaxSessions, p.o.MaxStep = 1, max(1, x.cfg.DraftBlock)
	if err := p.open(x); err != nil {
		x.fail("open an engine", err)
		return
	}
	w := &worker{walk: x, rng: rand.New(rand.NewPCG(x.o.Seed, 99)), plain: true}
	for _, sc := range x.scripts {
		s, err := p.e.Open()
		if err != nil {
			x.fail("open", err)
			return
		}
		l := &session{e: p.e, s: s, sc: sc, past: newHistory()}
		for n := min(x.o.Alone, p.o.MaxTokens); n > 0 && x.wrong == nil && x.knows(l); n-- {
			w.step(p, []chunk{{session: l, n: 1}})
			w.step(p, x.blocks(l))
		}
		if err := s.Close(); err != nil {
			x.fail("close", err)
		}
	}
	if err := p.e.Close(); err != nil {
		x.fail("close an engine", err)
	}
}

// knows reports whether the next token of a session's script was seen in an invariant engine.
func (x *walk) knows(l *session) bool {
	next := slices.Clone(l.past)
	next.add(x.counted(l.sc.tokens[l.len()], 0))
	return x.memory.knows(mix(next.now(), 0))
}
