// Package walk does random things with the sessions of some engines, from several goroutines at
// once: prompts, decode, drafts, forks, truncation, saving, restoring, cancelling, closing, with
// caches that grow and are full now and then. It compares the bits of every token with what the
// same past gave before, in whatever session, and at the end with a session alone.
package walk

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
	"github.com/vkmla/vkmla/pipeline/model"
	"github.com/vkmla/vkmla/vk"
)

// Options say what a walk does.
type Options struct {
	Device *vk.Device
	Config model.Config
	Layers []*model.DeviceLayer
	Pages  map[string]int // of an engine, of other sizes than those of the others

	Steps   int           // operations, of all goroutines together; 0: any number
	Time    time.Duration // after which it ends; 0: never
	Workers int           // goroutines
	Seed    uint64
	Long    bool // steps of hundreds of tokens, for which more kernels are compiled
	Alone   int  // tokens of each story that a session alone repeats at the end

	Live     func() map[string]int  // Vulkan objects, by kind
	Progress func(line string)      // called now and then; may be nil
	Disturb  func(*pipeline.Engine) // likewise, to spoil what the walk has to see
}

// Walk is one that goes on.
type Walk struct {
	o      Options
	world  *world
	memory *memory
	places []*place
	saved  snapshots

	steps  atomic.Int64
	ended  atomic.Bool
	mu     sync.Mutex
	did    map[string]int
	wrong  error
	stages []Stage
}

// Report is what a walk did and what it held.
type Report struct {
	Steps     int
	Took      time.Duration
	Did       map[string]int // operations by name; "no NAME: WHY" are those that failed as they should
	Compared  int            // tokens and snapshots that were compared with earlier ones
	First     int            // those of which it was the first
	Stages    []Stage
	LeftLive  map[string]int    // objects that were not there at the beginning, of those that a device does not keep
	LeftBytes map[string]uint64 // memory by label, if it is other than at the beginning
}

// String lists all but the stages.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d steps, %v; %d compared, %d seen for the first time\n", r.Steps, r.Took.Round(time.Second), r.Compared, r.First)
	var names []string
	for name := range r.Did {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%9d %s\n", r.Did[name], name)
	}
	return b.String()
}

// Run walks, and returns the first thing that was wrong.
func Run(o Options) (*Report, error) {
	x := &Walk{o: o, world: newWorld(o.Config.Hidden), memory: newMemory(), did: map[string]int{}}
	apart := &worker{Walk: x, rng: rand.New(rand.NewPCG(o.Seed, 98))}
	apart.transfer() // see after
	before, inUse, start := x.stage(), o.Device.MemoryInUse(), time.Now()
	for _, p := range x.newPlaces() {
		if err := p.open(x); err != nil {
			return nil, err
		}
		x.places = append(x.places, p)
	}
	watched := x.watch(start)
	var workers sync.WaitGroup
	for i := range o.Workers {
		w := &worker{Walk: x, rng: rand.New(rand.NewPCG(o.Seed, uint64(i)))}
		workers.Go(w.walk)
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
	after := x.stage()
	m := x.memory
	r := &Report{Steps: int(x.steps.Load()), Took: time.Since(start), Did: x.did, Compared: m.compared, First: m.first, Stages: x.stages,
		LeftLive: map[string]int{}}
	if now := o.Device.MemoryInUse(); !maps.Equal(now, inUse) {
		r.LeftBytes = now
	}
	for _, kind := range []string{"memory", "buffer", "command pool", "query pool"} {
		if n := after.Live[kind] - before.Live[kind]; n != 0 {
			r.LeftLive[kind] = n
		}
	}
	return r, x.wrong
}

// newPlaces makes the engines: invariant ones with pages, steps and memory of different sizes, and
// one whose bits depend on sizes of steps.
func (x *Walk) newPlaces() []*place {
	o := pipeline.EngineOptions{MaxTokens: 300, MaxSessions: 9, MaxStep: 4, CacheBytes: 1 << 20, MaxCacheBytes: 4 << 20,
		Rewind: 9, KeepTopK: true, Invariant: true}
	second, third := o, o
	second.MaxStep, second.Rewind, second.LayerByLayer, second.Pages, second.MaxSessions = 3, 130, true, x.o.Pages, 6
	third.Invariant, third.Rewind = false, 20
	if x.o.Long {
		o.MaxStep, second.MaxStep, third.MaxStep = 256, 70, 128
	}
	return []*place{{o: o}, {o: second}, {o: third}}
}

// drafts is the first layer that drafts; beyond the last one without any.
func (x *Walk) drafts() int {
	for i, l := range x.o.Layers {
		if x.o.Config.Layers[l.Layer].Block {
			return i
		}
	}
	return len(x.o.Layers)
}

// fail ends the walk.
func (x *Walk) fail(what string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wrong == nil {
		x.wrong = fmt.Errorf("step %d: %s: %w", x.steps.Load(), what, err)
	}
	x.end()
}

func (x *Walk) end() { x.ended.Store(true) }

func (x *Walk) count(what string) {
	x.mu.Lock()
	x.did[what]++
	x.mu.Unlock()
}

// place is an engine and its sessions.
type place struct {
	o pipeline.EngineOptions

	use     sync.RWMutex // held by those who use the engine, for writing by who replaces it
	closing atomic.Bool  // vk.ErrClosed is no surprise
	e       *pipeline.Engine

	mu  sync.Mutex
	all []*session
}

// session is one of an engine. Who uses it holds mu.
type session struct {
	mu    sync.Mutex
	s     *pipeline.Session
	story int
	past  past
	floor int // see Session.Truncate
}

func (p *place) open(x *Walk) (err error) {
	p.e, err = pipeline.NewEngine(context.Background(), x.o.Device, x.o.Config, x.o.Layers, p.o)
	return err
}

// take takes up to n sessions that nobody uses.
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
func (p *place) replace(x *Walk, beside bool) {
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
func (p *place) emptied(x *Walk) {
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

// alone takes the tokens of each story through a new engine one by one.
func (x *Walk) alone() {
	p := &place{o: x.places[0].o}
	p.o.MaxSessions, p.o.MaxStep = 1, 1
	if x.drafts() < len(x.o.Layers) {
		p.o.MaxStep = x.o.Config.DraftBlock
	}
	if err := p.open(x); err != nil {
		x.fail("open an engine", err)
		return
	}
	w := &worker{Walk: x, rng: rand.New(rand.NewPCG(x.o.Seed, 99)), plain: true}
	for story := range x.world.stories {
		s, err := p.e.Open()
		if err != nil {
			x.fail("open", err)
			return
		}
		l := &session{s: s, story: story, past: newPast(true)}
		for n := min(x.o.Alone, p.o.MaxTokens); n > 0 && x.wrong == nil; n-- {
			token := x.world.token(story, l.past.length())
			next := l.past.clone()
			if next.add(token, 0); !x.memory.known(next.now()) {
				break
			}
			w.step(p, []chunk{{s: l, tokens: []int{token}, stay: 1}})
			if x.drafts() < len(x.o.Layers) {
				w.step(p, w.blocks(p, []*session{l}))
			}
		}
		if err := s.Close(); err != nil {
			x.fail("close", err)
		}
	}
	if err := p.e.Close(); err != nil {
		x.fail("close an engine", err)
	}
}
