package prefix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// Options of a Keeper. The zero value suits a store that only trusted programs can write to.
type Options struct {
	// Key makes names and checksums HMACs. Keepers with different keys do not see each other's
	// objects, and who does not know the key can neither make them nor guess prompts by them.
	Key []byte

	// Timeout is the longest time that Open, and each Keep, may take for the store; 0: 30 s. Half a
	// gigabyte, as 128,000 tokens have, takes 4 s at 1 Gb/s. When an Open has run into it, the
	// store is left alone for as long again.
	Timeout time.Duration

	// Parallel is the most calls of the store that are in progress at a time; 0: 8. A span is half
	// a megabyte of DeepSeek-V4, so a distant store takes more.
	Parallel int

	Log *slog.Logger // of what the store fails at in Open; nil: none. Keep returns its errors
}

// Keeper opens sessions of an engine from a store, and keeps them there. Its methods may be called
// from any goroutine.
type Keeper struct {
	engine  *pipeline.Engine
	store   Store
	o       Options
	names   *namer
	calls   chan struct{} // holds a value for each call of the store in progress
	resting atomic.Int64  // until then, in Unix nanoseconds, the store is left alone

	mu      sync.Mutex
	known   map[digest]knowledge
	loads   map[digest]*load
	keeping map[digest]bool
	stats   Stats
}

// Stats count what a Keeper did since it was made.
type Stats struct {
	Asked, Found   uint64 // tokens, by Open
	Loaded, Stored uint64 // bytes
	Damaged        uint64 // objects that were not what was put
	Failed         uint64 // calls of the store that failed, or took too long
}

// New makes a keeper. The engine and the store stay the caller's.
//
// Errors: vk.ErrArgument for a nil engine or store, a negative Timeout or Parallel.
func New(e *pipeline.Engine, store Store, o Options) (*Keeper, error) {
	bad := func(arg string, got any, want string) error {
		return &vk.ArgumentError{Op: "prefix: new keeper", Arg: arg, Got: fmt.Sprint(got), Want: want}
	}
	switch {
	case e == nil || e.Layers() == 0:
		return nil, bad("e", "none", "an engine that pipeline.NewEngine made")
	case store == nil:
		return nil, bad("store", "nil", "a store")
	case o.Timeout < 0:
		return nil, bad("Timeout", o.Timeout, "at least 0")
	case o.Parallel < 0:
		return nil, bad("Parallel", o.Parallel, "at least 0")
	}
	o.Timeout, o.Parallel = cmp.Or(o.Timeout, 30*time.Second), cmp.Or(o.Parallel, 8)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{engine: e, store: store, o: o, names: newNamer(o.Key, e.Fingerprint()), calls: make(chan struct{}, o.Parallel),
		known: map[digest]knowledge{}, loads: map[digest]*load{}, keeping: map[digest]bool{}}, nil
}

// Stats returns the counters.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stats
}

// usable reports why nothing can be done.
func (k *Keeper) usable(ctx context.Context) error {
	if ctx == nil {
		return &vk.ArgumentError{Op: "prefix", Arg: "ctx", Got: "nil", Want: "a context"}
	}
	return ctx.Err()
}

// knowledge records the last known state of an object in the store.
type knowledge uint8

const (
	unknown knowledge = iota
	absent
	present
	damaged
)

// mostKnown is of how many objects a keeper remembers whether they are there.
const mostKnown = 1 << 18

// learn remembers what the store has of an object.
func (k *Keeper) learn(name digest, now knowledge) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.learnt(name, now)
}

// learnt is learn with the lock held.
func (k *Keeper) learnt(name digest, now knowledge) {
	if len(k.known) >= mostKnown {
		clear(k.known)
	}
	k.known[name] = now
}

func (k *Keeper) knows(name digest) knowledge {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[name]
}

// call calls the store, and waits no longer than the context, whatever the store does.
func call[T any](ctx context.Context, k *Keeper, f func(context.Context) (T, error)) (v T, err error) {
	select {
	case k.calls <- struct{}{}:
	case <-ctx.Done():
		return v, ctx.Err()
	}
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-k.calls }()
		v, err := f(ctx)
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return v, ctx.Err()
	}
}

// has asks the store for an object, unless it is known to be there.
func (k *Keeper) has(ctx context.Context, name digest) (bool, error) {
	before := k.knows(name)
	if before == present {
		return true, nil
	}
	there, err := call(ctx, k, func(ctx context.Context) (bool, error) { return k.store.Has(ctx, name.String()) })
	if err != nil {
		return false, k.failed("has", name, err)
	}
	now := absent
	if there {
		now = max(before, present) // damaged ones are there, too
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known[name] == before { // else another call got or put it meanwhile
		k.learnt(name, now)
	}
	return there, nil
}

// lacks reports whether an object should be stored, although the store seems to have it or not.
func (k *Keeper) lacks(name digest, seems bool) bool {
	switch k.knows(name) {
	case present:
		return false
	case unknown:
		return !seems
	}
	return true
}

// get loads an object with `size` bytes of content. Errors: errAbsent; those of the store.
func (k *Keeper) get(ctx context.Context, name digest, size int) ([]byte, error) {
	data, err := call(ctx, k, func(ctx context.Context) ([]byte, error) { return k.store.Get(ctx, name.String(), size+overhead) })
	if err == nil {
		data, err = k.names.unpack(name, data, size)
	}
	switch {
	case err == nil:
		k.learn(name, present)
		k.count(func(s *Stats) { s.Loaded += uint64(size) })
		return data, nil
	case errors.Is(err, fs.ErrNotExist):
		k.learn(name, absent)
		return nil, errAbsent
	case errors.Is(err, ErrDamaged):
		k.learn(name, damaged)
		k.count(func(s *Stats) { s.Damaged++ })
		k.o.Log.Warn("a prefix is computed again", "object", name.String(), "error", err)
		return nil, errAbsent
	}
	return nil, k.failed("get", name, err)
}

// put keeps an object.
func (k *Keeper) put(ctx context.Context, name digest, content []byte) error {
	_, err := call(ctx, k, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, k.store.Put(ctx, name.String(), k.names.pack(name, content))
	})
	if err != nil {
		return k.failed("put", name, err)
	}
	k.learn(name, present)
	k.count(func(s *Stats) { s.Stored += uint64(len(content)) })
	return nil
}

// errAbsent: an object is not there, or of no use.
var errAbsent = errors.New("absent")

// failed counts a failure of the store. Callers that left are none.
func (k *Keeper) failed(what string, name digest, err error) error {
	if !errors.Is(err, context.Canceled) {
		k.count(func(s *Stats) { s.Failed++ })
	}
	return fmt.Errorf("prefix: %s %s: %w", what, name, err)
}

func (k *Keeper) count(f func(*Stats)) {
	k.mu.Lock()
	f(&k.stats)
	k.mu.Unlock()
}
