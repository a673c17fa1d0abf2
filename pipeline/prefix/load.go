package prefix

import (
	"context"
	"errors"
	"slices"
)

// load is an object on its way from the store, for all who want it.
type load struct {
	done   chan struct{}
	cancel context.CancelFunc
	users  int // with Keeper.mu
	data   []byte
	err    error
}

// loader holds the objects that one Open has loaded. It keeps them until it is closed, and others
// who open the same prefix meanwhile take them from there.
type loader struct {
	k    *Keeper
	mine map[digest]*load
}

func (k *Keeper) loader() *loader { return &loader{k, map[digest]*load{}} }

// start begins to load an object, unless that has begun.
func (l *loader) start(name digest, size int) *load {
	if x := l.mine[name]; x != nil {
		return x
	}
	k := l.k
	k.mu.Lock()
	defer k.mu.Unlock()
	x := k.loads[name]
	if x == nil {
		// Whoever began may leave earlier than others who want it.
		ctx, cancel := context.WithTimeout(context.Background(), k.o.Timeout)
		x = &load{done: make(chan struct{}), cancel: cancel}
		k.loads[name] = x
		go func() {
			defer close(x.done)
			defer cancel()
			x.data, x.err = k.get(ctx, name, size)
		}()
	}
	x.users++
	l.mine[name] = x
	return x
}

// drop lets go of one object.
func (l *loader) drop(name digest) {
	x := l.mine[name]
	delete(l.mine, name)
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	if x.users--; x.users == 0 {
		x.cancel()
		if l.k.loads[name] == x {
			delete(l.k.loads, name)
		}
	}
}

func (l *loader) close() {
	for name := range l.mine {
		l.drop(name)
	}
}

// all loads objects. If one is absent, missing is its index, the least of several; else it is -1.
func (l *loader) all(ctx context.Context, names []digest, sizes []int) (data [][]byte, missing int, err error) {
	data = make([][]byte, len(names))
	missing = -1
	// The last one is the state, without which the others are of no use. The first spans, which the
	// most prompts share, are the last to be used, so that a store forgets them last.
	for i, name := range slices.Backward(names) {
		l.start(name, sizes[i])
	}
	for i, name := range slices.Backward(names) {
		x := l.mine[name]
		select {
		case <-x.done:
		case <-ctx.Done():
			return nil, -1, ctx.Err()
		}
		switch {
		case errors.Is(x.err, errAbsent):
			missing = i
			l.drop(name)
			if i == len(names)-1 {
				return nil, i, nil // the spans are on their way for a shorter prefix
			}
		case x.err != nil:
			return nil, -1, x.err
		}
		data[i] = x.data
	}
	return data, missing, nil
}

// claims are objects that one Keep stores and no other one meanwhile.
type claims struct {
	k    *Keeper
	mine []digest
}

// claim reports whether the caller may store an object, because no other call does.
func (c *claims) claim(name digest) bool {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	if c.k.keeping[name] {
		return false
	}
	c.k.keeping[name] = true
	c.mine = append(c.mine, name)
	return true
}

func (c *claims) release() {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	for _, name := range c.mine {
		delete(c.k.keeping, name)
	}
}
