package replicas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/pipeline/prefix"
	"github.com/vkmla/vkmla/vk"
)

const opNew = "replicas: new group"

// Replica is an engine on a device of its own.
type Replica struct {
	Engine *pipeline.Engine
	Device *vk.Device // the engine's

	// MaxCacheBytes is the engine's option of this name. With 0 what the device has free counts as
	// room, as vk.Device.MemoryBudget says.
	MaxCacheBytes uint64
}

// Options of a Group.
type Options struct {
	// Store has prompts; Open takes from it beginnings that no open session has; nil: none. Prefix
	// says how it is used.
	Store  prefix.Store
	Prefix prefix.Options

	// Rewind is the engines' option of this name: if a session has other tokens after the beginning
	// of a prompt, Open can leave out as many.
	Rewind int

	// Lead is the most sessions that one replica may have beyond another for the sake of the
	// beginnings that are there; 0: any number. A session beyond them goes where the fewest are,
	// and its beginning is copied. Many sessions that begin alike then use all replicas, for the
	// price of as many copies: about 4 KB a token of DeepSeek-V4.
	Lead int
}

// Group is replicas of a model. Its methods, and those of sessions, may be called from any
// goroutine. The zero value cannot be used.
type Group struct {
	replicas []Replica
	keepers  []*prefix.Keeper // of each replica; nil without a store
	o        Options

	mu       sync.Mutex
	sessions map[*Session]bool // that are open
	opened   uint64            // sessions so far
}

// New makes a group. Engines, devices and store stay the caller's. All engines have the same model,
// weights and formats, see pipeline.Engine.Fingerprint; give them the same options, too: pages and
// limits may differ. Sessions have the same bits everywhere if the devices and drivers are the
// same.
//
// Errors: vk.ErrArgument for no replicas, one without an engine or a device, an engine or a device
// that is there twice, engines of different fingerprints, a negative Lead or Rewind;
// those of prefix.New.
func New(list []Replica, o Options) (*Group, error) {
	if len(list) == 0 {
		return nil, badArgument(opNew, "list", "none", "at least one replica")
	}
	for name, n := range map[string]int{"Lead": o.Lead, "Rewind": o.Rewind} {
		if n < 0 {
			return nil, badArgument(opNew, name, n, "at least 0")
		}
	}
	g := &Group{replicas: slices.Clone(list), o: o, sessions: map[*Session]bool{}}
	for i, x := range list {
		bad := func(field string, got any, want string) error {
			return badArgument(opNew, fmt.Sprintf("list[%d].%s", i, field), got, "%s", want)
		}
		same := func(f func(y Replica) bool) bool { return slices.ContainsFunc(list[:i], f) }
		switch {
		case x.Engine == nil || x.Engine.Layers() == 0:
			return nil, bad("Engine", "none", "one that pipeline.NewEngine made")
		case x.Device == nil:
			return nil, bad("Device", "nil", "the engine's device")
		case same(func(y Replica) bool { return y.Engine == x.Engine }):
			return nil, bad("Engine", "one that is there twice", "another for each replica")
		case same(func(y Replica) bool { return y.Device == x.Device }):
			return nil, bad("Device", "one that is there twice", "another for each replica")
		case x.Engine.Fingerprint() != list[0].Engine.Fingerprint():
			return nil, bad("Engine", "another model, weights or formats", "those of list[0]")
		}
		if o.Store == nil {
			continue
		}
		k, err := prefix.New(x.Engine, o.Store, o.Prefix)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", opNew, err)
		}
		g.keepers = append(g.keepers, k)
	}
	return g, nil
}

// usable reports why nothing can be done.
func (g *Group) usable(ctx context.Context) error {
	switch {
	case g == nil || len(g.replicas) == 0:
		return badArgument("replicas", "group", "nil", "one that New made")
	case ctx == nil:
		return badArgument("replicas", "ctx", "nil", "a context")
	}
	return ctx.Err()
}

// Err says which devices are lost, nil while none is. It asks no device and does not wait.
func (g *Group) Err() (err error) {
	for i := range len(g.replicas) {
		err = errors.Join(err, g.lost(i))
	}
	return err
}

// lost says what is wrong with a replica's device.
func (g *Group) lost(replica int) error {
	if err := g.replicas[replica].Device.Err(); err != nil {
		return fmt.Errorf("replica %d: %w", replica, err)
	}
	return nil
}

// Load describes a replica's work and room.
type Load struct {
	Sessions int    // open
	Tokens   int    // of those sessions
	Held     uint64 // bytes of pages that they hold
	Free     uint64 // bytes that they may come to hold besides
	Err      error  // why the replica cannot be used, nil if it can
}

// share is the room for one more session.
func (l Load) share() float64 { return float64(l.Free) / float64(l.Sessions+1) }

// Loads returns the load of each replica.
func (g *Group) Loads() []Load {
	list := make([]Load, len(g.replicas))
	if len(g.replicas) == 0 {
		return list
	}
	g.mu.Lock()
	for s := range g.sessions {
		list[s.at].Sessions++
		list[s.at].Tokens += len(s.tokens)
	}
	g.mu.Unlock()
	for i := range list {
		l, x := &list[i], g.replicas[i]
		l.Err = g.lost(i)
		m := x.Engine.Memory()
		if m == (pipeline.EngineMemory{}) && l.Err == nil {
			l.Err = fmt.Errorf("replica %d: engine %w", i, vk.ErrClosed)
		}
		most := x.MaxCacheBytes
		if most == 0 {
			most = m.Caches + free(x.Device)
		}
		l.Held, l.Free = m.Held, most-min(most, m.Held)
	}
	return list
}

// free returns the memory that the device has for caches that grow, where the driver tells, else
// what this program has not taken.
func free(d *vk.Device) (most uint64) {
	if budget := d.MemoryBudget(); budget != nil {
		for _, b := range budget {
			if b.DeviceLocal {
				most = max(most, b.Free())
			}
		}
		return most
	}
	for _, h := range d.Caps().Heaps {
		if h.DeviceLocal {
			most = max(most, h.Bytes)
		}
	}
	for _, n := range d.MemoryInUse() {
		most -= min(most, n)
	}
	return most
}

// roomiest lists the replicas that can be used, the one with the most room for a session first.
func (g *Group) roomiest(loads []Load) (list []int) {
	for i, l := range loads {
		if l.Err == nil {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int {
		switch x, y := loads[a].share(), loads[b].share(); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return loads[a].Sessions - loads[b].Sessions // both are full
	})
	return list
}

// none is the error where no replica can be used.
func none(loads []Load) error {
	var err error
	for _, l := range loads {
		err = errors.Join(err, l.Err)
	}
	return err
}

// badArgument says what is wrong with an argument of a call.
func badArgument(op, arg string, got any, want string, a ...any) error {
	return &vk.ArgumentError{Op: op, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
}
