package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/vkmla/vkmla/vk"
)

// Errors of engines, sessions and steps, besides cache.ErrPoolFull, model.ErrConfig and those
// of package vk. They arrive wrapped, with the values that were wrong.
var (
	// ErrSequenceFull: a session would get more tokens than EngineOptions.MaxTokens.
	ErrSequenceFull = errors.New("the sequence is full")
	// ErrTooManySessions: EngineOptions.MaxSessions are open already.
	ErrTooManySessions = errors.New("too many sessions")
	// ErrInStep: a session was to change while the step in progress has tokens of it, or while
	// Engine.Begin takes its pages.
	ErrInStep = errors.New("the session is in a step")
	// ErrRewind: a session was to be truncated further than EngineOptions.Rewind allows.
	ErrRewind = errors.New("too far to truncate")
	// ErrSnapshot: no session can be restored from the data. It was not written by Session.Save,
	// is of another model or format, damaged, cut short or followed by something else.
	ErrSnapshot = errors.New("not a usable snapshot")
	// ErrSnapshotModel: a snapshot is of an engine with another Fingerprint. The message says what
	// differs: configuration or layers, weights, or formats. It matches ErrSnapshot, too.
	ErrSnapshotModel = fmt.Errorf("%w: of another model", ErrSnapshot)
	// ErrSnapshotVersion: a snapshot is of a format that this version of the package does not
	// read. It matches ErrSnapshot, too.
	ErrSnapshotVersion = fmt.Errorf("%w: of another format", ErrSnapshot)
)

// wrap puts an operation in front of an error, unless it stands there already.
func wrap(op string, err error) error {
	if a, ok := err.(*vk.ArgumentError); ok && a.Op == op {
		return err
	}
	return fmt.Errorf("%s: %w", op, err)
}

// badArgument says what is wrong with an argument of a call.
func badArgument(op, arg string, got any, want string, a ...any) error {
	return &vk.ArgumentError{Op: op, Arg: arg, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, a...)}
}

// alive returns why a context ends a call before it begins.
func alive(ctx context.Context) error {
	if ctx == nil {
		return badArgument("pipeline", "ctx", "nil", "a context")
	}
	return ctx.Err()
}

// argumentCheck remembers the first thing that is wrong with a call's arguments.
type argumentCheck struct {
	op  string
	err error
}

func (c *argumentCheck) bad(arg string, got any, want string, a ...any) {
	if c.err == nil {
		c.err = badArgument(c.op, arg, got, want, a...)
	}
}
