// Package replicas spreads sessions over the GPUs of a host: data-parallel attention. Every GPU has
// an engine with all weights and with the caches of its own sessions, so that two of them take
// twice the sessions, and no step of one waits for another.
//
// A session stays where it was opened. A lost device takes its own sessions with it and no others.
package replicas

import (
	"errors"

	"github.com/vkmla/vkmla/cache"
	"github.com/vkmla/vkmla/pipeline"
	"github.com/vkmla/vkmla/vk"
)

// Replica is a GPU with the whole model. Its methods may be called from any goroutine.
type Replica interface {
	// Sessions returns the number of sessions that the replica has, or of requests.
	Sessions() int
	// Err returns why the replica takes no sessions, such as vk.Device.Err; nil while it does.
	Err() error
}

// Open opens a session on the replica with the fewest, the first of them where several are equal.
// One that is lost, or that turns out to be full, is passed over. S is what a session is for the
// caller, which open makes.
//
// Errors: vk.ErrArgument for an empty list or a nil open; where no replica takes a session, the
// errors of all; other errors of open at once.
func Open[R Replica, S any](list []R, open func(R) (S, error)) (s S, err error) {
	switch {
	case len(list) == 0:
		return s, badArgument("list", "none", "at least one replica")
	case open == nil:
		return s, badArgument("open", "nil", "a function")
	}
	refused := make([]error, len(list))
	for range list {
		to := -1
		for i, r := range list {
			if refused[i] == nil {
				refused[i] = r.Err()
			}
			if refused[i] == nil && (to < 0 || r.Sessions() < list[to].Sessions()) {
				to = i
			}
		}
		if to < 0 {
			break
		}
		if s, err = open(list[to]); err == nil || !elsewhere(err) {
			return s, err
		}
		refused[to] = err
	}
	return s, errors.Join(refused...)
}

// Err returns nil while one replica takes sessions, otherwise the errors of all.
func Err[R Replica](list []R) error {
	var all []error
	for _, r := range list {
		err := r.Err()
		if err == nil {
			return nil
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

// elsewhere reports whether another replica may do what one could not.
func elsewhere(err error) bool {
	for _, kind := range []error{pipeline.ErrTooManySessions, cache.ErrPoolFull, vk.ErrDeviceLost, vk.ErrOutOfDeviceMemory} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func badArgument(arg, got, want string) error {
	return &vk.ArgumentError{Op: "replicas: open session", Arg: arg, Got: got, Want: want}
}
